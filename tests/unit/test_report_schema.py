"""The published schema of report.json, held to what is written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import report_schema
from incident import EVIDENCE, VERDICT

from hangwatch.model.verdict import OK
from hangwatch.report.build import build_report

PUBLISHED = report_schema.DOCS / "report.schema.json"


def test_the_published_schemas_are_those_of_the_code() -> None:
    for file, text in report_schema.published():
        assert file.read_text() == text
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_a_report_has_what_the_schema_says_and_nothing_else() -> None:
    check = jsonschema.Draft202012Validator(report_schema.document(closed=True))
    for verdicts in ((VERDICT,), (VERDICT, OK), (OK,)):
        check.validate(json.loads(json.dumps(build_report(replace(EVIDENCE, verdicts=verdicts)))))


@pytest.mark.parametrize("change", [{"verdict": None}, {"exit_code": "0"}, {"ranks": [{}]}])
def test_the_schema_refuses_what_is_no_report(change: dict[str, Any]) -> None:
    check = jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text()))
    report = json.loads(json.dumps(build_report(EVIDENCE)))
    check.validate({**report, "added_later": 1})
    with pytest.raises(jsonschema.ValidationError):
        check.validate({**report, **change})
