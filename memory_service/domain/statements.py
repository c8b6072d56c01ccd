"""Statements: whether two say the same, one says more, one denies the other, or they give one attribute two values.

A wrong yes loses something true; a wrong no only keeps two facts where one would do. So every answer here is no unless
the two texts leave no doubt: words count as they stand, in their order, and only sentences of a few plain English
shapes are understood. Whatever is said in another way, or in another language, is another statement unless it is word
for word the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from memory_service.domain.lexical import is_function_word, terms

_SIGNS = str.maketrans({"’": "'", "ʼ": "'", "−": "-", "–": "-", "‑": "-"})
_OPENING = "\"“„«([{'"
_CLOSING = '"”“»)]},;:'


def _all(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ARTICLES = frozenset({"a", "an", "the"})
_COUNTED_BY_ARTICLE = frozenset({"few", "little"})
"""With an article before them these mean some, without one hardly any."""
_PRESENT = frozenset({"am", "is", "are"})
_NOT = {"cannot": ("can", "not"), "can't": ("can", "not"), "won't": ("will", "not"), "shan't": ("shall", "not")}

_NAMES_A_SECRET = _all(
    "password passwords passphrase passcode code codes pin key keys token tokens secret username login id ids"
)
"""In a statement with one of these, capitals are part of what is said."""

_NEGATIONS = _all("not no never without none nothing nobody neither nor")
_GUARDS = _NEGATIONS | _all(
    "hardly barely seldom only just all every each any always most "
    "some several few both may might can could should would shall must will if unless until till except but when "
    "whenever while before after or instead than allowed permitted perhaps maybe probably either"
)
"""Words under which more words may say less, or one value may stand beside another."""

_COMPLEMENTS = frozenset({"with", "because", "near", "where", "who", "which", "since", "named", "called"})
"""Words that go on with a statement without taking anything of it back."""

_UPDATING = frozenset({"now", "currently", "nowadays", "anymore"})
"""Words that say that a statement is the latest of its kind, and nothing else."""

_DENIED = frozenset({"is", "are", "am", "can", "has", "have", "will", "should", "must"})
"""What "not" takes back where it follows: "may not" and "could not" deny nothing."""

_ONE_VALUE = _all(
    "birthday age address email timezone budget deadline password passphrase status version size weight height job role"
    " employer"
)
"""Nouns of what somebody or something has one of at a time."""
_ONE_STATE = frozenset({"status"})
_FAVOURITE = frozenset({"favourite", "favorite", "default"})
"""What has these takes any word for its value; "her job is stressful" is none of "her job is nurse"."""

_REGIONS = _all("""
    afghanistan albania algeria america andorra angola argentina armenia australia austria azerbaijan bahrain bangladesh
    belarus belgium benin bolivia bosnia botswana brazil britain bulgaria burundi cambodia cameroon canada chad chile
    china colombia congo croatia cuba cyprus czechia denmark ecuador egypt england eritrea estonia eswatini ethiopia
    europe africa asia fiji finland france gabon gambia georgia germany ghana greece greenland guatemala guinea guyana
    haiti honduras hungary iceland india indonesia iran iraq ireland israel italy jamaica japan jordan kazakhstan kenya
    korea kosovo kuwait kyrgyzstan laos latvia lebanon lesotho liberia libya liechtenstein lithuania luxembourg
    madagascar malawi malaysia mali malta mauritania mauritius mexico moldova monaco mongolia montenegro morocco
    mozambique myanmar namibia nepal netherlands nicaragua niger nigeria norway oman pakistan palestine panama paraguay
    peru philippines poland portugal qatar romania russia rwanda scotland senegal serbia singapore slovakia slovenia
    somalia spain sudan sweden switzerland syria taiwan tajikistan tanzania thailand togo tunisia turkey uganda uk
    ukraine uruguay us usa uzbekistan venezuela vietnam wales yemen zambia zimbabwe scandinavia
    bavaria california catalonia florida flanders normandy saxony sicily texas tuscany
    new south north united saudi costa great states kingdom zealand arabia rica republic czech dominican el salvador sri
    lanka puerto emirates northern southern western eastern central the of
    """)
"""Places that hold cities: who lives in one of these may live in a city as well."""

_DETERMINERS = _all("a an the one my our his her their its this that these those another")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*")
_UNITS = _all("kg kilos kilograms lb lbs pounds stone g cm m metres meters feet ft")


@dataclass(frozen=True)
class _Valued:
    """A statement that gives something that has one value at a time its value: all of it that is not the value, the
    value's words as they stand, whether it is a place to live, and whether any word can be one.
    """

    frame: tuple[str, ...]
    value: tuple[str, ...]
    is_home: bool = False
    takes_words: bool = False


def same(one: str, other: str) -> bool:
    """Return whether two texts say the same, word for word.

    Only articles, the final stop, contracted negations, capitals that are no part of a word, and "is living" for
    "lives" may differ.
    """
    mine, theirs = _words(one), _words(other)
    if not mine or not theirs:
        return _whole(one) == _whole(other)
    left, right = _in_present(mine), _in_present(theirs)
    return len(left) == len(right) and all(_is_alike(*pair) for pair in zip(left, right, strict=True))


def says_more(longer: str, shorter: str) -> bool:
    """Return whether one text is the other with something added at its end that takes nothing of it back."""
    more, less = _words(longer), _words(shorter)
    return (
        len(less) >= 3
        and len(more) >= len(less) + 2
        and more[: len(less)] == less
        and more[len(less)] in _COMPLEMENTS
        and _GUARDS.isdisjoint(more)
    )


def contradict(one: str, other: str) -> bool:
    """Return whether two texts cannot both hold: one denies what the other says, or both give one attribute of one
    subject its value and the values differ.
    """
    return _denies(one, other) or _denies(other, one) or _give_two_values(one, other)


def share_a_word(one: str, other: str) -> bool:
    """Return whether two texts have a word in common that is no function word, whatever its ending."""
    return not frozenset(terms(one)).isdisjoint(terms(other))


def _whole(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _raw_words(text: str) -> list[str]:
    """Return the words of a text as they stand: signs and symbols are part of them, punctuation around them is not."""
    found = []
    for raw in unicodedata.normalize("NFC", text).translate(_SIGNS).split():
        word = raw.lstrip(_OPENING)
        ends = _CLOSING + ("'" if len(word) < len(raw) else "")
        word = word.rstrip(ends)
        if word.endswith((".", "。")):
            word = word.rstrip(".。").rstrip(ends)
        if word:
            found.append(word)
    if found and found[-1].rstrip("!").isalpha():
        found[-1] = found[-1].rstrip("!")
    return found


def _folded(words: Sequence[str]) -> tuple[str, ...]:
    is_exact = any(word.lower() in _NAMES_A_SECRET for word in words)
    is_shouted = all(word == word.upper() for word in words)
    found = []
    for at, word in enumerate(words):
        lower = word.lower()
        is_plain = word in (lower, word.upper(), word.capitalize())
        is_acronym = len(word) > 1 and word.isupper() and is_function_word(lower) and not is_shouted
        if (at > 0 and (is_exact or is_acronym or not is_plain)) or any(map(str.isdigit, word)):
            found.append(word)
        else:
            found.append(lower)
    return tuple(found)


def _words(text: str) -> tuple[str, ...]:
    """Return the words that a statement is compared by."""
    found: list[str] = []
    words = _folded(_raw_words(text))
    for at, word in enumerate(words):
        if word in _ARTICLES and words[at + 1 : at + 2] and words[at + 1] not in _COUNTED_BY_ARTICLE:
            continue
        if word in _NOT:
            found += _NOT[word]
        elif word.endswith("n't") and len(word) > 3:
            found += (word[:-3], "not")
        else:
            found.append(word)
    return tuple(found)


def _in_present(words: tuple[str, ...]) -> list[tuple[str, bool]]:
    """Return each word and whether it is an "is living", which then is one word."""
    found: list[tuple[str, bool]] = []
    for word in words:
        if found and found[-1][0] in _PRESENT and len(word) > 5 and word.endswith("ing") and word.islower():
            found[-1] = (word, True)
        else:
            found.append((word, False))
    return found


def _is_alike(one: tuple[str, bool], other: tuple[str, bool]) -> bool:
    (mine, i_am), (theirs, they_are) = one, other
    if i_am == they_are:
        return mine == theirs
    plain = theirs if i_am else mine
    return plain.endswith("s") and terms(mine) == terms(theirs)


def _denies(denial: str, statement: str) -> bool:
    denied, said = _words(denial), _words(statement)
    if not _NEGATIONS.isdisjoint(said):
        return False
    taken_back = _taken_back(denied)
    if taken_back is None or len(taken_back[0]) != len(said):
        return False
    positive, verb_at = taken_back
    differing = [at for at, pair in enumerate(zip(positive, said, strict=True)) if pair[0] != pair[1]]
    return not differing or (differing == [verb_at] and said[verb_at] in _third_person(positive[verb_at]))


def _taken_back(words: tuple[str, ...]) -> tuple[tuple[str, ...], int] | None:
    """Return what a statement with one negation denies, and where the verb is whose ending "does not" took (or -1)."""
    at = [place for place, word in enumerate(words) if word in _NEGATIONS]
    if len(at) != 1 or at[0] == 0:
        return None
    place = at[0]
    before, word, after = words[:place], words[place], list(words[place + 1 :])
    if after[-1:] == ["anymore"]:
        after = after[:-1]
    elif after[-2:] == ["any", "more"]:
        after = after[:-2]
    if not after:
        return None
    if after[1:2] == ["any"]:
        after = [after[0], *after[2:]]
    if word == "no" and after[:1] == ["longer"]:
        return (*before, *after[1:]), -1
    if word == "not" and before[-1] in ("does", "do"):
        return (*before[:-1], *after), len(before) - 1
    if word == "never" or (word == "no" and after[0].isalpha()) or (word == "not" and before[-1] in _DENIED):
        return (*before, *after), -1
    return None


def _third_person(verb: str) -> tuple[str, ...]:
    return ("has",) if verb == "have" else (f"{verb}s", f"{verb}es", f"{verb[:-1]}ies")


def _give_two_values(one: str, other: str) -> bool:
    mine, theirs = _valued(one), _valued(other)
    if mine is None or theirs is None or mine.frame != theirs.frame:
        return False
    left = tuple(word.lower() for word in mine.value)
    right = tuple(word.lower() for word in theirs.value)
    if frozenset(left) <= frozenset(right) or frozenset(right) <= frozenset(left):
        return False
    if mine.is_home and (_REGIONS.issuperset(left) or _REGIONS.issuperset(right)):
        return False
    sort = _sort(mine.value)
    return sort == _sort(theirs.value) and (sort != "word" or mine.takes_words)


def _sort(value: Sequence[str]) -> str:
    """Return what sort of thing a value is: only things of one sort are values of one attribute."""
    if any("@" in word or "://" in word for word in value):
        return "address"
    if any(map(str.isdigit, "".join(value))):
        return "number"
    return "name" if value[0][:1].isupper() else "word"


def _valued(text: str) -> _Valued | None:
    raw = [word for word in _raw_words(text) if word.lower() not in _UPDATING]
    words = [word.lower() for word in raw]
    if not 3 <= len(words) <= 24 or any("n't" in word for word in words):
        return None
    if any(word in _GUARDS and raw[at] != "May" for at, word in enumerate(words)):
        return None
    return _home(raw, words) or _work(raw, words) or _measure(raw, words) or _bond(raw, words) or _noun(raw, words)


def _home(raw: list[str], words: list[str]) -> _Valued | None:
    for verb in ("lives", "live", "resides"):
        if verb in words:
            at = words.index(verb)
            if words[at + 1 : at + 2] == ["in"] and _is_one_being(raw[:at]):
                return _of_names(words[: at + 2], raw[at + 2 :], is_home=True)
    return None


def _work(raw: list[str], words: list[str]) -> _Valued | None:
    for verb in ("works", "work"):
        if verb in words:
            at = words.index(verb)
            if words[at + 1 : at + 2] in (["for"], ["at"]) and _is_one_being(raw[:at]):
                return _of_names([*words[: at + 1], "for"], raw[at + 2 :])
    return None


def _bond(raw: list[str], words: list[str]) -> _Valued | None:
    for state in ("married", "engaged"):
        if state in words:
            at = words.index(state)
            if words[at - 1 : at] == ["is"] and words[at + 1 : at + 2] == ["to"] and _is_one_being(raw[: at - 1]):
                return _of_names(words[: at + 2], raw[at + 2 :])
    return None


def _measure(raw: list[str], words: list[str]) -> _Valued | None:
    """ "Anna is 34 years old", "Anna weighs 70 kg", "Anna is 172 cm tall"."""
    at = next((place for place, word in enumerate(words) if _NUMBER.fullmatch(word)), None)
    if at is None or at < 2 or not _is_one_being(raw[: at - 1]):
        return None
    rest = words[at + 1 :]
    is_age = words[at - 1] == "is" and rest in (["years", "old"], ["year", "old"])
    is_size = rest[:1] and rest[0] in _UNITS and (words[at - 1], rest[1:]) in (("weighs", []), ("is", ["tall"]))
    if not (is_age or is_size):
        return None
    return _Valued((*words[:at], "#", "years" if is_age else rest[0], *rest[1:]), (raw[at],))


def _noun(raw: list[str], words: list[str]) -> _Valued | None:
    """ "Anna's phone number is 1234", "the deadline of project Apollo is 1 May", "Anna's favourite colour is blue"."""
    if "is" not in words:
        return None
    at = words.index("is")
    subject, value = words[:at], raw[at + 1 :]
    if not value or len(value) > 6 or not _is_one_thing(raw[:at], subject):
        return None
    if any(is_function_word(word.lower()) for word in value) or "and" in words:
        return None
    return _Valued((*subject, "is"), tuple(value), takes_words=not (_ONE_STATE | _FAVOURITE).isdisjoint(subject))


def _of_names(frame: Sequence[str], value: Sequence[str], *, is_home: bool = False) -> _Valued | None:
    if not 1 <= len(value) <= 4 or not all(word[:1].isupper() or word.lower() in ("the", "of", "de") for word in value):
        return None
    return _Valued(tuple(frame), tuple(value), is_home=is_home)


def _is_one_being(words: Sequence[str]) -> bool:
    """Return whether words name one being alone: "Anna", "Anna Meyer", "I", "the user"; "Anna's sister" may be two."""
    lower = [word.lower() for word in words]
    if lower in (["i"], ["the", "user"]):
        return True
    is_name = 1 <= len(words) <= 3 and all(word[:1].isupper() and "'" not in word for word in words)
    return is_name and lower[0] not in _DETERMINERS


def _is_one_thing(raw: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether words end in what its owner has one of, and name one owner."""
    owned = [place for place, word in enumerate(words) if "'" in word]
    if owned:
        if len(owned) > 1 or owned[0] > 2 or not words[owned[0]].endswith(("'s", "s'")):
            return False
        if not all(word[:1].isupper() for word in raw[: owned[0] + 1]) or words[0] in _DETERMINERS:
            return False
        rest = words[owned[0] + 1 :]
    elif words and words[0] in ("the", "my", "our"):
        rest = words[1:]
        link = next((place for place, word in enumerate(rest) if word in ("of", "for")), None)
        if link is not None:
            whose = rest[link + 1 :]
            if not whose or any(is_function_word(word) and word != "the" for word in whose):
                return False
            rest = rest[:link]
    else:
        return False
    if not rest or any(is_function_word(word) for word in rest):
        return False
    if rest[-1] == "number":
        return rest[-2:-1] in (["phone"], ["telephone"])
    return rest[-1] in _ONE_VALUE or not _FAVOURITE.isdisjoint(rest[-3:-1])
