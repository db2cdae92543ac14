"""The project's own prompts: five kinds of work, because speculation pays differently on each."""

from __future__ import annotations

from dataclasses import dataclass

FUNCTION = """\
def total_price(items, tax_rate):
    result = 0
    for item in items:
        price = item["price"] * item["count"]
        if item.get("discount"):
            price = price * (1 - item["discount"])
        result = result + price
    if tax_rate:
        result = result * (1 + tax_rate)
    if result < 0:
        raise ValueError("the total is negative")
    print("total is", result)
    log_total(result)
    return round(result, 2)
"""
_CLASS = """\
class Stack:
    def __init__(self):
        self.items = []

    def push(self, value):
        self.items.append(value)

    def pop(self):
        if not self.items:
            raise IndexError("the stack is empty")
        return self.items.pop()

    def size(self):
        return len(self.items)
"""
_LETTER = (
    "Dear members of the garden club, our spring meeting will take place on Saturday the fourth of May "
    "at ten in the morning in the old greenhouse behind the library. Please bring seeds to share, a pair "
    "of gloves and something warm to drink. We will plant the beds along the south wall, repair the fence "
    "near the pond and vote on the plan for the new orchard. If it rains we will meet in the reading room "
    "instead."
)
_RECORDS = (
    '[{"name": "Ada", "age": 36, "city": "London"}, {"name": "Linus", "age": 28, "city": "Helsinki"}, '
    '{"name": "Grace", "age": 45, "city": "New York"}]'
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of one kind."""

    name: str
    prompts: tuple[str, ...]


WORKLOADS = (
    Workload(
        "code",
        (
            "Write a Python function for the n-th Fibonacci number, with a docstring and an example.",
            "Write a Python class for a bank account with deposit, withdraw and balance.",
            "Write a function in Python that counts how often each word occurs in a text file.",
        ),
    ),
    Workload(
        "edit",
        (
            "Rename the variable `result` to `amount` in this function. Answer with the whole function.\n"
            f"```python\n{FUNCTION}```",
            f"Add a method `peek` to this class. Answer with the whole class.\n```python\n{_CLASS}```",
            f"Repeat this letter, but move the meeting to Sunday the fifth of May.\n\n{_LETTER}",
        ),
    ),
    Workload(
        "chat",
        (
            "What is the difference between a virus and a bacterium?",
            "I sleep badly before exams. What can I do?",
            "Explain to a ten year old why the sky is blue.",
        ),
    ),
    Workload(
        "json",
        (
            f'Add the field "active": true to every record of this JSON. Answer with JSON only.\n{_RECORDS}',
            "Answer with a JSON object that describes a book: title, author, year, and a list of three "
            "chapters, each with number, title and pages.",
            "Answer with a JSON list of five European countries, each with name, capital and population.",
        ),
    ),
    Workload(
        "creative",
        (
            "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
            "Write a poem about the first snow in a big city.",
            "Invent a legend about how the moon got its spots.",
        ),
    ),
)
"""In the order of the benchmark's table."""
