"""Programs that take turns: each is a process of its own, loads once, then answers one question a line with a number."""

import os
import statistics
import subprocess
import sys


class Program:
    """A child that runs serve(). `error` is what it wrote if it could not load, else None."""

    def __init__(self, command, **environment):
        self.child = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
        ready = self.child.stdout.readline().strip() == "ready"
        self.error = None if ready else self.child.communicate()[1].strip() or "no message"

    def ask(self, question):
        self.child.stdin.write(question + "\n")
        self.child.stdin.flush()
        return float(self.child.stdout.readline())

    def close(self):
        self.child.communicate()


def serve(load):
    """In the child: load() gives the function that answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    answer = load()
    print("ready", file=answers, flush=True)
    for question in sys.stdin:
        print(answer(question.strip()), file=answers, flush=True)


def medians(programs, questions, rounds):
    """{name: {question: median of its answers}}; the programs take turns at every question of a round."""
    answers = {name: {question: [] for question in questions} for name in programs}
    for _ in range(rounds):
        for question in questions:
            for name, program in programs.items():
                answers[name][question].append(program.ask(question))
    return {name: {question: statistics.median(list_) for question, list_ in of.items()} for name, of in answers.items()}
