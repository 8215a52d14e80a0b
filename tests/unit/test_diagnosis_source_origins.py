"""Where the size of a tensor, or a root, comes to depend on what a rank has of its own."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hangwatch.diagnosis.source.files import Source
from hangwatch.diagnosis.source.origins import root_of_rank, size_of_data
from hangwatch.diagnosis.source.program import Line

FILE = "/home/u/train.py"
OTHER = "/home/u/data.py"


def found(text: str, call: str = "all_reduce(", data: str = "") -> str | None:
    """The line that is found from the call in a text; data: the text of another file."""
    sources = {FILE: dedent(text), OTHER: dedent(data)}
    lines = sources[FILE].splitlines()
    number = next(at for at, line in enumerate(lines, 1) if call in line)
    line = size_of_data(Source(sources).program, Line(FILE, number))
    return sources[line.file].splitlines()[line.number - 1].strip() if line else None


@pytest.mark.parametrize(
    "made",
    [
        "x = rows[rows > 0]",
        "x = rows[rows.isfinite()]",
        "x = rows[~empty]",
        "x = rows[:, valid.nonzero()]",
        "x = torch.stack([row for row in rows if row.sum() > 0])",
        "x = rows.unique()",
        "x = torch.bincount(labels)",
        "x = torch.zeros(int(labels.max()) + 1)",
        "x = torch.zeros(len(rows), max(len(row) for row in rows))",
        "x = pad_sequence(rows)",
        "x = rows[: int(mask.sum())]",
    ],
)
def test_what_chooses_among_the_data_is_found(made: str) -> None:
    assert found(f"def step(rows):\n    {made}\n    dist.all_reduce(x)\n") == made


@pytest.mark.parametrize(
    "made",
    [
        "x = torch.zeros(4)",
        "x = torch.zeros(cfg.classes)",
        "x = model(rows)",
        "x = rows[0]",
        "x = rows[:4]",
        "x = torch.bincount(labels, minlength=9)",
        "x = torch.stack([row * 2 for row in rows])",
        "x = max(one, two)",
    ],
)
def test_what_has_one_size_is_not(made: str) -> None:
    assert found(f"def step(rows):\n    {made}\n    dist.all_reduce(x)\n") is None


def test_a_mask_of_a_name_and_a_list_filled_below_a_condition_are_found() -> None:
    text = """
    def step(rows):
        keep = rows.norm(dim=1) > 0.05
        dist.all_reduce(rows[keep])
    """
    assert found(text) == "dist.all_reduce(rows[keep])"
    text = """
    def step(rows):
        kept = []
        for row in rows:
            if row.is_silent():
                continue
            kept.append(row)
        dist.all_reduce(torch.stack(kept))
    """
    assert found(text) == "if row.is_silent():"
    always = text.replace("if row.is_silent():", "row = row + 1").replace("continue", "")
    assert found(dedent(always).replace("            \n", "")) is None


def test_it_is_followed_through_helpers_objects_and_iterators_of_other_files() -> None:
    data = """
    class Stream:
        def __init__(self, rank):
            self.gen = torch.Generator()
        def __next__(self):
            clip = torch.randn(16, generator=self.gen)
            clip = clip[clip.abs() > 0.1]
            return clip + 1, clip - 1
    """
    text = """
    def gather(x):
        out = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(out, x)
    class Loss(nn.Module):
        def forward(self, a, b):
            b = normalize(b)
            return a @ gather(b.detach())
    def main():
        self.loss_of, stream = Loss(), Stream(rank)
        for a, b in islice(stream, steps):
            self.loss_of(a, model(b)).backward()
    """
    assert found(text, "all_gather(", data=data) == "clip = clip[clip.abs() > 0.1]"


def test_what_an_object_returns_counts_where_it_is_called() -> None:
    text = """
    class Picks(nn.Module):
        def forward(self, x):
            return x[x > 0]
    def main():
        model = DDP(Picks())
        dist.all_reduce({tensor})
    """
    assert found(text.format(tensor="model(batch)")) == "return x[x > 0]"
    assert found(text.format(tensor="model.weight.grad")) is None


def test_a_name_of_the_file_is_not_that_of_a_function() -> None:
    text = "def pick(rows):\n    x = rows[rows > 0]\n    return x\nx = {made}\ndist.all_reduce(x)\n"
    assert found(text.format(made="torch.ones(4)")) is None
    assert found(text.format(made="pick(batch)")) == "x = rows[rows > 0]"


def test_a_name_that_stands_for_itself_comes_to_an_end() -> None:
    assert (
        found("def step(x):\n    x = f(x)\n    y = x\n    x = y\n    dist.all_reduce(x)\n") is None
    )
    assert found("dist.all_reduce(x)\n") is None


@pytest.mark.parametrize(
    "own", ["scores[dist.get_rank()] = exact", "scores[self.rank] = exact", "scores[0] = exact"]
)
def test_a_value_of_the_ranks_own_in_what_a_root_is_computed_from_is_found(own: str) -> None:
    text = f"""
    def gathered(exact):
        scores = [row.item() for row in rows]
        {own}
        return scores
    def ranking(scores):
        return sorted(range(len(scores)), key=scores.__getitem__)
    def exploit(self):
        scores = gathered(self.score())
        best = ranking(scores)[0]
        dist.broadcast(self.weights, src=best)
        dist.broadcast(self.weights[self.rank], 0)
    """
    program = Source({FILE: dedent(text)}).program
    found = root_of_rank(program, Line(FILE, 11))
    assert (found is not None and found.number == 4) is ("rank" in own)
    assert root_of_rank(program, Line(FILE, 12)) is None


def test_so_is_one_in_an_attribute_that_a_method_asks_for() -> None:
    text = """
    class Board:
        def note(self, score):
            self.scores[self.rank] = score
        def leader(self):
            return min(range(3), key=self.scores.__getitem__)
    def exploit(self):
        dist.broadcast_object_list(box, src=self.board.leader())
    """
    assert root_of_rank(Source({FILE: dedent(text)}).program, Line(FILE, 8)) == Line(FILE, 4)
