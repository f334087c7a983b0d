"""tenonnx check: what a model breaks of its specification."""

from __future__ import annotations

from tenonnx.cli.common import FAILED, AsJson, Model, command, print_json


@command(
    "tenonnx check model.onnx",
    "tenonnx check model.onnx --json",
)
def check(
    file: Model,
    json: AsJson = False,
) -> None:
    """List what a model breaks. Every finding of the checker is printed; exit code 1 when one is an error."""
    from tenonnx.text import read_model

    model, data_root = read_model(file)
    from tenonnx.check import check as check_model

    findings = check_model(model, data_root=data_root)
    if json:
        keys = ("severity", "kind", "rule", "where", "message")
        print_json({"file": file, "findings": [{key: str(getattr(finding, key)) for key in keys} for finding in findings]})
    else:
        for finding in findings:
            print(f"{finding.severity} {finding.rule} {finding.where}: {finding.message}")
        if not findings:
            print("no findings")
    if any(finding.severity == "error" for finding in findings):
        raise SystemExit(FAILED)
