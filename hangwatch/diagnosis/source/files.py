"""What the user's source says: its trees, each parsed once, and what its conditions ask for.

Without the source, or where it does not parse, there is no answer, never a guess.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property

from hangwatch.diagnosis.source.alike import has_as_many, is_alike, is_evened
from hangwatch.diagnosis.source.feeding import taken_before
from hangwatch.diagnosis.source.names import (
    GIVE_RANK,
    Variables,
    computed,
    counters,
    holds_for,
    is_of_rank,
    names_the_rank,
    variables,
)
from hangwatch.diagnosis.source.program import Line, Program
from hangwatch.diagnosis.source.syntax import called, parse, runs_out
from hangwatch.diagnosis.source.values import Value


class Source:
    """Parsed user files, each parsed once."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._trees: dict[str, ast.Module | None] = {}
        self._variables: dict[str, Variables] = {}
        self._asks: dict[tuple[ast.expr, bool], bool] = {}

    def tree(self, file: str) -> ast.Module | None:
        """The parsed file, None where there is none."""
        if file not in self._trees:
            self._trees[file] = parse(self._texts.get(file))
        return self._trees[file]

    @cached_property
    def program(self) -> Program:
        """All of them that parse."""
        trees = {file: self.tree(file) for file in self._texts}
        return Program({file: tree for file, tree in trees.items() if tree is not None})

    def line_of(self, file: str, node: ast.AST) -> int:
        """The line of a statement; of a ``try`` that of its ``finally``."""
        first = int(getattr(node, "lineno", 0))
        if not isinstance(node, ast.Try | ast.TryStar) or not node.finalbody:
            return first
        lines = (self._texts.get(file) or "").splitlines()[: node.finalbody[0].lineno]
        above = (at for at in range(len(lines), first, -1) if lines[at - 1].strip() == "finally:")
        return next(above, first)

    def holds_for(self, file: str, test: ast.expr, rank: int) -> bool | None:
        """Whether a condition on the rank holds for one; None where the text does not tell."""
        return holds_for(test, rank, lambda node: self.asks_for_rank(file, node))

    def asks_for_rank(self, file: str, test: ast.expr, *, strictly: bool = False) -> bool:
        """Whether a condition reads like a question for the rank.

        strictly: not for what a function has made of the rank.
        """
        found = self._asks.get((test, strictly))
        if found is None:
            found = self._asks[test, strictly] = self._asks_for_rank(file, test, strictly=strictly)
        return found

    def _asks_for_rank(self, file: str, test: ast.expr, *, strictly: bool) -> bool:
        given = self.given(file)
        ranks = given.computed if strictly else given.ranks
        others = given.others | (given.ranks - ranks)

        def is_rank(node: ast.AST) -> bool:
            if isinstance(node, ast.Name):
                named = names_the_rank(node) and node.id not in others
                return node.id in ranks or named or self._is_given_rank(file, node)
            kept = isinstance(node, ast.Attribute) and (
                node.attr in given.rank_attributes | self._rank_attributes
                or (node.attr in given.kept and self._is_given_rank(file, node))
            )
            return kept or names_the_rank(node)

        return any(map(is_rank, ast.walk(test)))

    @cached_property
    def _rank_attributes(self) -> frozenset[str]:
        """The attributes that one line of the program gives a value, which is of the rank.

        Or of such attributes: ``self.last = self.stage == 3`` of ``self.stage = self.rank // 2``.
        """
        made: dict[str, list[ast.expr]] = defaultdict(list)
        for tree in self.program.trees.values():
            for to, value in self.program.given_in(tree, everywhere=True):
                for one in to.elts if isinstance(to, ast.Tuple) else [to]:
                    if isinstance(one, ast.Attribute):
                        made[one.attr].append(value)
        once = {name: values[0] for name, values in made.items() if len(values) == 1}
        found: set[str] = set()
        while more := {
            n for n, value in once.items() if n not in found and is_of_rank(value, found)
        }:
            found |= more
        return frozenset(found)

    def _is_given_rank(self, file: str, node: ast.Attribute | ast.Name) -> bool:
        """Whether an attribute is what a constructor was called with, and that is of the rank.

        Or a name is an argument, and all callers give what is.
        """
        scope = self.program.scope_at(Line(file, node.lineno))
        if scope is None:
            return False
        value = Value(self.program, file, scope, node)
        if isinstance(node, ast.Name):
            arguments = value.arguments() or []
        else:
            arguments = [one for given in value.steps() for one in given.steps()]
        return bool(arguments) and all(is_of_rank(one.node) for one in arguments)

    def counts_by_rank(self, file: str, over: ast.expr) -> bool:
        """Whether a loop has as many turns as the rank says: not as many as data of its own."""
        calls = (called(node) for node in ast.walk(over) if isinstance(node, ast.Call))
        counted = all(name in GIVE_RANK | {"range"} for name in calls)
        return counted and self.asks_for_rank(file, over, strictly=True)

    def has_same_turns(self, file: str, loop: ast.AST) -> bool:
        """Whether a loop has as many turns on all ranks, but for what leaves it."""
        if not isinstance(loop, ast.For | ast.While):
            return False
        if not runs_out(loop, self.given(file).constants):
            return True
        scope = self.program.scope_at(Line(file, loop.lineno))
        if isinstance(loop, ast.While) or scope is None:
            return False
        taken = taken_before(self.program, file, loop) if isinstance(loop, ast.For) else None
        return taken is None and has_as_many(Value(self.program, file, scope, loop.iter))

    def is_evened(self, file: str, loop: ast.AST) -> bool:
        """Whether a loop goes over a loader that is meant to have as many turns on all ranks.

        It may not have: a dataset may be as large as what the rank has of it.
        """
        scope = self.program.scope_at(Line(file, getattr(loop, "lineno", 0)))
        if not isinstance(loop, ast.For) or scope is None:
            return False
        return is_evened(Value(self.program, file, scope, loop.iter))

    def is_alike(self, file: str, test: ast.expr) -> bool:
        """Whether a condition asks for nothing but constants and settings."""
        scope = self.program.scope_at(Line(file, test.lineno))
        return scope is not None and is_alike(Value(self.program, file, scope, test))

    def is_settled(self, file: str, test: ast.expr) -> bool:
        """Whether a condition is the same each time that a rank comes to it."""
        given, again = self.given(file), self._computed_again(file)

        def settled(node: ast.AST) -> bool:
            match node:
                case ast.Name():
                    varies = node.id in given.varying or node.id in again
                    return not varies or names_the_rank(node)
                case ast.Attribute():
                    return node.attr in given.kept or names_the_rank(node)
                case ast.Call():
                    return called(node) in GIVE_RANK and all(map(settled, node.args))
            return all(map(settled, ast.iter_child_nodes(node)))

        return settled(test)

    def asks_for_exception(self, file: str, test: ast.expr) -> bool:
        """Whether a condition of an ``__exit__`` asks for what was raised in its block."""
        scope = self.program.scope_at(Line(file, test.lineno))
        if not isinstance(scope, ast.FunctionDef) or scope.name != "__exit__":
            return False
        raised = {argument.arg for argument in scope.args.args[1:]}
        return any(isinstance(node, ast.Name) and node.id in raised for node in ast.walk(test))

    def _computed_again(self, file: str) -> frozenset[str]:
        """The names of a file that a function computes which is called again and again."""
        scopes = (one for one in self.program.called_in_loops if self.program.files[one] == file)
        return frozenset().union(*map(computed, scopes))

    def is_of_turns(self, file: str, test: ast.expr) -> bool:
        """Whether a condition asks only for the number of a turn, and for what all ranks have."""
        scope = self.program.scope_at(Line(file, test.lineno))
        if scope is None:
            return False
        turns, names = counters(scope), {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
        known = turns | self.given(file).constants
        return bool(names & turns) and is_alike(Value(self.program, file, scope, test), known)

    def given(self, file: str) -> Variables:
        """What the names of a file are given."""
        if file not in self._variables:
            self._variables[file] = variables(self.tree(file) or ast.Module([], []))
        return self._variables[file]
