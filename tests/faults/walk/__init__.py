"""A seeded walk of many identities over two stores, each answer compared with plain lists.

memory, statements, upkeep    the lists: what every answer has to be, with nothing of the product
models                        a chat model and an embedder whose answers the lists can tell beforehand
store                         a service with its lists
visit                         one step under way: who asks which store, and what is drawn
writing, correcting, reading, sessions, erasing, moving, together
                              the steps, by what they do
walking                       takes steps, compares everything at the end, and makes a failing walk shorter
"""
