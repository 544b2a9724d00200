"""Judge a model by the glossary: how many words it explains as docs/glossary.md does.

    python3 llm/models/glossary/judge.py SOUK [MODEL [WORDS]]

SOUK is souk's binary, MODEL a folder (default: the bundled model), WORDS how many words to ask
(default: all). It asks `What is a lease?` and so on, at temperature 0, on this machine.
"""
import subprocess
import sys

from texts import glossary


def answer(souk, model, word):
    """The model's answer to the question what a word means."""
    article = "an " if word[0] in "aeiou" else "a "
    question = f"What is {article}{word}?"
    command = [souk, "generate", model, "--local", "--chat", "--temperature", "0", question]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    souk, model = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "bundled"
    words = dict(glossary())
    asked = list(words)[: int(sys.argv[3])] if len(sys.argv) > 3 else list(words)
    right, near = 0, 0
    for word in asked:
        meaning, said = words[word], answer(souk, model, word)
        wanted = meaning[0].upper() + meaning[1:] + "."
        right += said == wanted
        near += said[:20] == wanted[:20]
    print(f"{right} of {len(asked)} words to the letter, {near} begin rightly")


if __name__ == "__main__":
    main()
