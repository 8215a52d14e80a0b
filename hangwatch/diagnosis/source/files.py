"""The user's source: its trees, each parsed once, and the meaning of its conditions and loops.

Without the source, or where it does not parse, there is no answer, never a guess.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from functools import cached_property

from hangwatch.diagnosis.source.alike import SAME_TURNS, has_as_many, is_alike, is_evened
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
from hangwatch.diagnosis.source.syntax import called, is_fixed, parse, parts
from hangwatch.diagnosis.source.values import Value, taken_before


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
        """Return True if a condition on the rank holds for it; None if the text does not say."""
        return holds_for(test, rank, lambda node: self.asks_for_rank(file, node))

    def asks_for_rank(self, file: str, test: ast.expr, *, strictly: bool = False) -> bool:
        """Return True if a condition reads like a question for the rank.

        strictly: not for something that a function has made of the rank.
        """
        found = self._asks.get((test, strictly))
        if found is None:
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

            found = self._asks[test, strictly] = any(map(is_rank, ast.walk(test)))
        return found

    @cached_property
    def _rank_attributes(self) -> frozenset[str]:
        """The attributes that one line of the program computes from the rank.

        Or from other ones: ``self.last = self.stage == 3`` of ``self.stage = self.rank // 2``.
        """
        trees = self.program.trees.values()
        given = (one for tree in trees for one in self.program.given_in(tree, everywhere=True))
        made = [
            (to.attr, value)
            for target, value in given
            for to in parts(target)
            if isinstance(to, ast.Attribute)
        ]
        count = Counter(name for name, _ in made)
        once = {name: value for name, value in made if count[name] == 1}
        found: set[str] = set()
        while more := {n for n in once.keys() - found if is_of_rank(once[n], found)}:
            found |= more
        return frozenset(found)

    def _is_given_rank(self, file: str, node: ast.Attribute | ast.Name) -> bool:
        """Return True if an attribute is an argument of a constructor that got the rank.

        Or a name is an argument, and all callers give it the rank.
        """
        value = self._value(file, node)
        if value is None:
            return False
        if isinstance(node, ast.Name):
            arguments = value.arguments() or []
        else:
            arguments = [one for given in value.steps() for one in given.steps()]
        return bool(arguments) and all(is_of_rank(one.node) for one in arguments)

    def _value(self, file: str, node: ast.expr) -> Value | None:
        scope = self.program.scope_at(Line(file, node.lineno))
        return None if scope is None else Value(self.program, scope, node)

    def counts_by_rank(self, file: str, over: ast.expr) -> bool:
        """Return True if the rank, and not its data, gives a loop its number of iterations."""
        calls = (called(node) for node in ast.walk(over) if isinstance(node, ast.Call))
        counted = all(name in GIVE_RANK | {"range"} for name in calls)
        return counted and self.asks_for_rank(file, over, strictly=True)

    def has_same_turns(self, file: str, loop: ast.AST) -> bool:
        """Return True if a loop has equal lengths on all ranks, unless a statement leaves it."""
        constants = self.given(file).constants
        if isinstance(loop, ast.While):
            return is_fixed(loop.test, constants)
        if not isinstance(loop, ast.For):
            return False
        if isinstance(loop.iter, ast.Call) and called(loop.iter) in SAME_TURNS:
            return True
        over = self._value(file, loop.iter)
        fresh = taken_before(self.program, file, loop) is None
        return fresh and over is not None and has_as_many(over, constants)

    def is_evened(self, file: str, loop: ast.AST) -> bool:
        """Return True if a loop is over a loader that should have equal lengths on all ranks.

        It may not have: a dataset may be as large as the part of it that the rank has.
        """
        over = self._value(file, loop.iter) if isinstance(loop, ast.For) else None
        return over is not None and is_evened(over)

    def is_alike(self, file: str, test: ast.expr) -> bool:
        """Return True if a condition asks for nothing but constants and settings."""
        value = self._value(file, test)
        return value is not None and is_alike(value)

    def is_settled(self, file: str, test: ast.expr) -> bool:
        """Return True if a condition has the same value each time that a rank reaches it."""
        given = self.given(file)
        scopes = (one for one in self.program.called_in_loops if self.program.files[one] == file)
        again = frozenset().union(*map(computed, scopes))

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
        """Return True if a condition of an ``__exit__`` asks for the exception of its block."""
        scope = self.program.scope_at(Line(file, test.lineno))
        if not isinstance(scope, ast.FunctionDef) or scope.name != "__exit__":
            return False
        raised = {argument.arg for argument in scope.args.args[1:]}
        return any(isinstance(node, ast.Name) and node.id in raised for node in ast.walk(test))

    def is_of_turns(self, file: str, test: ast.expr) -> bool:
        """Return True if a condition depends only on the iteration and on values of all ranks."""
        value = self._value(file, test)
        if value is None:
            return False
        turns = counters(value.scope)
        asks = any(isinstance(node, ast.Name) and node.id in turns for node in ast.walk(test))
        return asks and is_alike(value, turns | self.given(file).constants)

    def given(self, file: str) -> Variables:
        """The variables of a file."""
        if file not in self._variables:
            self._variables[file] = variables(self.tree(file) or ast.Module([], []))
        return self._variables[file]
