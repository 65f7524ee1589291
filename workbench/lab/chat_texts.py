"""Texts of the chat workloads."""

# About 200 tokens of the default model, so that a dozen blocks of 16 are shared.
SYSTEM_PROMPT = (
    "You are the assistant of a public library. You help visitors of every age to find books, to "
    "understand what they read, and to use the reading rooms. Answer in plain words and in at most "
    "five sentences. If a question is about opening hours, say that the library is open from nine "
    "in the morning until eight in the evening on weekdays, and until two in the afternoon on "
    "Saturdays. If a visitor asks for a book, name the author, the year and one reason to read it. "
    "If you do not know something, say so and name the desk where a person can help: the front "
    "desk for cards and fees, the blue desk for children, the green desk for maps and old "
    "newspapers. Never make up a title. Keep to the language of the visitor. Be kind to those who "
    "are new here, and patient with those who ask twice. Do not give medical or legal advice; "
    "point to the shelf where such books stand instead. End each answer with a short question "
    "that helps the visitor to go on."
)

QUESTIONS = (
    "When can I come on a Saturday?",
    "Which book would you give a ten-year-old who likes whales?",
    "What is the difference between a novel and a short story?",
    "I lost my library card. What should I do?",
    "Can you explain what a metaphor is, with an example?",
    "I want to learn how bridges are built. Where do I start?",
    "Why do leaves change their colour in autumn?",
    "How do I find an old newspaper from my home town?",
    "My grandmother cannot see small letters well. What can she read here?",
    "Who wrote Frankenstein, and why is it still read?",
    "How does a telescope work?",
    "What makes a poem a poem?",
    "Is there a quiet place to study for an exam?",
    "How did people tell the time before there were clocks?",
    "I have to give a talk about volcanoes. What should be in it?",
    "Which book explains money to somebody who never learned about it?",
    "What is the oldest map you know of?",
    "How do I write a letter of thanks?",
    "Why is the sea salty?",
    "Can you suggest a story for a long train journey?",
    "What does an editor do?",
    "How do bees find their way home?",
    "I would like to read more, but I fall asleep. Any advice?",
    "How were books copied before printing?",
    "What is a good first book about the stars?",
    "Why do languages have different words for the same thing?",
    "How can I check whether something I read is true?",
    "What is the plot of Treasure Island in a few sentences?",
    "How do I keep old paper from falling apart?",
    "Which animals live the longest?",
)

FOLLOW_UPS = (
    "Thank you. Can you say that in simpler words?",
    "Why is that so?",
    "Give me one example.",
    "And what would you recommend next?",
    "Who could tell me more about it?",
    "What do most people get wrong about this?",
    "How long would it take me to learn that?",
    "Is there an opposite opinion?",
)

SHORT_PROMPTS = (
    "Name a colour and something that has it.",
    "What rhymes with light?",
    "Count from one to ten.",
    "Say good morning in another language.",
    "Name a river.",
    "What is seven times eight?",
    "Give me a word with four letters.",
    "Name an animal that can swim.",
    "Which month comes after June?",
    "Finish the sentence: the rain in",
    "Name something made of wood.",
    "What do bakers make?",
)
