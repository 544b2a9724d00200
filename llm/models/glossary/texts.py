"""The texts from which the glossary model learns: the documents of this repository, and questions
with answers made of docs/glossary.md.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]
ASKED = [
    "What is {a}{word}?",
    "What is {word}?",
    "What does {word} mean?",
    "{word}?",
    "Tell me what {a}{word} is.",
    "what is {a}{word}",
]


def documents():
    pages = sorted(ROOT.glob("docs/**/*.md")) + [ROOT / "README.md"]
    return [re.sub(r"\]\([^)]*\)", "]", page.read_text()) for page in pages]


def glossary():
    """What each word means."""
    for line in (ROOT / "docs" / "glossary.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[0] not in ("word", "---"):
            for word in cells[0].split(", "):
                yield word, cells[1].replace("`", "")


def dialogues():
    for word, meaning in glossary():
        article = "an " if word[0] in "aeiou" else "a "
        answer = meaning[0].upper() + meaning[1:] + "."
        for asked in ASKED:
            question = asked.format(a=article, word=word)
            question = question[0].upper() + question[1:] if "?" in question else question
            yield f"<|user|>{question}<|end|><|assistant|>{answer}<|end|>"
