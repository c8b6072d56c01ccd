"""Small sets of short statements that were written for these benchmarks.

PARAPHRASES: a question, and the statement that answers it with hardly a word in common.
UNANSWERABLE: questions that none of those statements answers.
UPDATES: a question, what was said first, and what was said later about the same thing.
"""

PARAPHRASES = (
    (
        "What pet do I have?",
        "My beagle Rex loves long walks in the park.",
    ),
    (
        "Where do I live?",
        "I moved into a flat in Hamburg near the harbour.",
    ),
    (
        "Which foods must I avoid?",
        "I'm allergic to peanuts and shellfish.",
    ),
    (
        "What is my job?",
        "I work as a nurse at the children's hospital.",
    ),
    (
        "How do I like my coffee?",
        "I take my espresso without sugar.",
    ),
    (
        "When is my wedding anniversary?",
        "We got married on 12 June 2014.",
    ),
    (
        "What instrument do I play?",
        "I've been practising the cello every evening.",
    ),
    (
        "Who is my manager?",
        "Dana Okafor leads our team and I report to her.",
    ),
    (
        "What car do I drive?",
        "I bought a used Toyota Corolla last spring.",
    ),
    (
        "Which editor theme should you use?",
        "I prefer dark mode everywhere.",
    ),
    (
        "What language do we code in?",
        "Our backend is written in Rust.",
    ),
    (
        "Where are we going on vacation?",
        "We've booked a cabin in the Norwegian fjords for August.",
    ),
    (
        "Do I have siblings?",
        "My brother Tim is two years younger than me.",
    ),
    (
        "What sport do I do?",
        "I go bouldering on Tuesdays and Thursdays.",
    ),
    (
        "Which database does the project rely on?",
        "We decided on Postgres for all persistent data.",
    ),
    (
        "How should answers be formatted?",
        "Please reply in short bullet lists.",
    ),
    (
        "What medication am I taking?",
        "The doctor prescribed me 50 mg of sertraline.",
    ),
    (
        "What's my daughter called?",
        "Our little girl Emma started kindergarten.",
    ),
    (
        "What is the release schedule?",
        "We ship a new version every second Wednesday.",
    ),
    (
        "What did I study?",
        "I hold a degree in mechanical engineering from Delft.",
    ),
    (
        "What music am I into?",
        "I listen to a lot of jazz, mostly Coltrane.",
    ),
    (
        "Where is the backup kept?",
        "Nightly snapshots go to the S3 bucket in Frankfurt.",
    ),
    (
        "Am I a vegetarian?",
        "I haven't eaten meat since 2015.",
    ),
    (
        "How tall am I?",
        "I measure 183 centimetres.",
    ),
    (
        "What time zone am I in?",
        "I'm based in Tokyo.",
    ),
    (
        "what am I afraid of?",
        "Spiders make me panic.",
    ),
    (
        "Which hobby did I take up recently?",
        "Last month I started pottery classes.",
    ),
    (
        "Which airline do I prefer?",
        "I always fly with Lufthansa when I can.",
    ),
    (
        "Who should be called in an emergency?",
        "If anything happens to me, phone my wife Ana at 555-0199.",
    ),
    (
        "What's the wifi code at the office?",
        "The guest network password is tulip-42.",
    ),
)

UNANSWERABLE = (
    "What is the capital of Mongolia?",
    "How do I bake sourdough bread?",
    "Explain quantum entanglement.",
    "What's the weather like today?",
    "Write a haiku about autumn.",
    "Translate good morning to French.",
    "Who won the world cup in 1998?",
    "What is the square root of 144?",
    "Tell me a joke.",
    "How does photosynthesis work?",
    "What's the boiling point of mercury?",
    "Recommend a science fiction film.",
    "Fix this regular expression.",
    "What's the stock price of Nvidia?",
    "How many moons has Jupiter?",
)

UPDATES = (
    (
        "What is my favourite colour?",
        "My favourite colour is blue.",
        "My favourite colour is green now.",
    ),
    (
        "Where do I live?",
        "I live in a small flat in Paris.",
        "I live in Berlin now, near the canal.",
    ),
    (
        "What is my budget for the trip?",
        "My budget for the trip is 2000 dollars.",
        "Let's raise my trip budget to 3500 dollars.",
    ),
    (
        "Which phone do I use?",
        "I use an iPhone 12 as my phone.",
        "I switched my phone, I use a Pixel 8 these days.",
    ),
    (
        "What's my dog's name?",
        "My dog is called Bruno.",
        "We renamed the dog, my dog is called Balu.",
    ),
    (
        "Who is my dentist?",
        "My dentist is Dr Weber.",
        "I have a new dentist, Dr Novak.",
    ),
    (
        "When is the project deadline?",
        "The project deadline is 3 March.",
        "They moved the project deadline to 17 April.",
    ),
    (
        "What's my job?",
        "I work as a barista.",
        "I got a new job, I work as a paralegal.",
    ),
    (
        "Which framework do we use for the frontend?",
        "We use Vue as the frontend framework.",
        "We migrated, the frontend framework is Svelte.",
    ),
    (
        "How many children do I have?",
        "I have two children.",
        "Our third was born, I have three children.",
    ),
    (
        "What is my shoe size?",
        "My shoe size is 42.",
        "Turns out my shoe size is 43.",
    ),
    (
        "Which gym do I go to?",
        "I go to the gym on Baker Street.",
        "I changed my gym, I go to FitHouse.",
    ),
    (
        "What's my email address?",
        "My email address is tom@old.example.",
        "Please use my new email address tom@new.example.",
    ),
    (
        "What tea do I drink in the morning?",
        "In the morning I drink black tea.",
        "In the morning I drink jasmine tea these days.",
    ),
    (
        "Who leads the data team?",
        "The data team is led by Priya.",
        "Since Monday the data team is led by Marcus.",
    ),
    (
        "What is the wifi password?",
        "The wifi password is apple77.",
        "I reset it, the wifi password is plum88.",
    ),
    (
        "What car do I drive?",
        "I drive a Ford Fiesta as my car.",
        "I sold it, the car I drive is a Kia Niro.",
    ),
    (
        "Am I allergic to anything?",
        "I am allergic to cats.",
        "The test says I am allergic to pollen as well, not to cats.",
    ),
    (
        "How do I commute?",
        "I commute by bus.",
        "I bought a bike and commute by bike.",
    ),
    (
        "What's my weekly running distance?",
        "My weekly running distance is 20 km.",
        "My weekly running distance is up to 35 km.",
    ),
)
