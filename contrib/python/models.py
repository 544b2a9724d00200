"""Write src/souk/_models.py from docs/openapi.json: what the gateway answers, as Python has it.

    python models.py            write it
    python models.py --check    say whether it is what would be written

So what the gateway learns to say is here with the next run.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

HERE = Path(__file__).parent
API = HERE.parent.parent / "docs" / "openapi.json"
MODELS = HERE / "src" / "souk" / "_models.py"

Schema = dict[str, Any]

# What a type of the API is called here, where it is more than the word without `View`.
NAMES = {
    "BoughtLeaseView": "BoughtLease",
    "ByDtype_Option_u64": "OperationPrices",
    "ByDtype_u64": "Throughput",
    "ClassView": "MarketClass",
    "IndexView": "PriceIndex",
    "JobDetail": "JobFacts",
    "JobView": "JobState",
    "OutputView": "OutputFacts",
    "SessionView": "SessionFacts",
    "TrainingDetail": "TrainingFacts",
    "TrainingView": "TrainingState",
}

# What is made by hand, or sent and not received.
LEFT_OUT = {
    *("Amendment", "AskBody", "BidBody", "Code", "Extension", "Healthy", "InputBody"),
    *("JobBody", "JobRequest", "ModelList", "OrderBody", "Problem", "SessionBody", "SessionList"),
}

# Whole numbers of these names are micro-credits.
CREDITS = {
    *("amount", "available", "close", "cost", "deposits", "earned", "escrow", "fees", "held"),
    *("high", "low", "max_price", "open", "paid", "price", "refunded", "spent", "stake"),
    *("withdrawals", "budget", "fee", "released", "price_min", "price_max", "micro_credits"),
    *("min_stake", "left", "period_spent"),
    *("input_per_million", "cached_per_million", "output_per_million"),
}

# Texts of these names are times, beside those that end in `_at` and those that say so.
TIMES = {"as_of", "at", "start"}

# Names that Python has for itself, and what they are called here.
FIELDS = {"class": "class_name", "from": "source", "to": "target"}

HEAD = '''"""What the gateway answers. Made by models.py from docs/openapi.json, not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias, TypedDict

from ._credits import Credits
from ._table import Table

{}

Amount: TypeAlias = Credits | Decimal | float | str
"""An amount of credits, as one may give it."""

WIRE_NAMES = {}
"""What fields are called on the wire, where that is another word."""


'''


def called(schema: str) -> str:
    """What a type is called in Python."""
    return NAMES.get(schema, schema.removesuffix("View"))


def reference(schema: Schema) -> str | None:
    """The type that a schema refers to."""
    path = schema.get("$ref")
    return path.rsplit("/", 1)[1] if path else None


class Document:
    """The API's own description."""

    def __init__(self, text: str) -> None:
        self.schemas: dict[str, Schema] = json.loads(text)["components"]["schemas"]

    def kind(self, name: str, schema: Schema) -> str:
        """The Python type of a field."""
        if "oneOf" in schema:
            inner = next(one for one in schema["oneOf"] if one.get("type") != "null")
            return f"{self.kind(name, inner)} | None"
        if target := reference(schema):
            is_word = self.schemas.get(target, {}).get("type") == "string"
            return "str" if is_word else called(target)
        kind = schema.get("type", "object")
        if isinstance(kind, list):
            inner = next(str(one) for one in cast("list[object]", kind) if one != "null")
            return f"{self.kind(name, {**schema, 'type': inner})} | None"
        return self.plain(name, kind, schema)

    def plain(self, name: str, kind: str, schema: Schema) -> str:
        """The Python type of a field that may not be null."""
        if kind == "array":
            inner = self.kind(name, schema["items"])
            target = reference(schema["items"])
            is_row = target is not None and "properties" in self.whole(self.schemas[target])
            return f"Table[{inner}]" if is_row else f"tuple[{inner}, ...]"
        if kind == "integer":
            return "Credits" if name in CREDITS else "int"
        if kind == "string":
            told = schema.get("description", "")
            is_time = name in TIMES or name.endswith("_at") or "RFC 3339" in told
            return "datetime" if is_time else "str"
        return {"number": "float", "boolean": "bool"}.get(kind, "Mapping[str, Any]")

    def whole(self, schema: Schema) -> Schema:
        """A schema with the fields of those that it is made of."""
        if "allOf" not in schema:
            return schema
        merged: Schema = {"required": [], "properties": {}}
        for part in schema["allOf"]:
            target = reference(part)
            found = self.whole(self.schemas[target] if target else part)
            merged["required"] += found.get("required", [])
            merged["properties"].update(found["properties"])
        return {**merged, "description": schema.get("description", "")}

    def model(self, name: str) -> str:
        """One type."""
        schema = self.whole(self.schemas[name])
        required = schema.get("required", [])
        lines = ["@dataclass(frozen=True, slots=True, kw_only=True)", f"class {called(name)}:"]
        lines += documented(schema.get("description", ""), 4)
        lines.append("")
        # In the order in which the gateway writes them, which `required` keeps.
        fields = schema["properties"]
        for field in [*required, *(name for name in fields if name not in required)]:
            of = fields[field]
            kind = self.kind(field, of)
            optional = "" if field in required else " = None"
            if optional and not kind.endswith("None"):
                kind += " | None"
            lines.append(f"    {FIELDS.get(field, field)}: {kind}{optional}")
            lines += documented(of.get("description", ""), 4)
        return "\n".join(lines)

    def asked(self, schema: str, name: str, told: str, left_out: Sequence[str]) -> str:
        """What one may ask for beside what is always given."""
        lines = [f"class {name}(TypedDict, total=False):", *documented(told, 4), ""]
        for field, of in self.schemas[schema]["properties"].items():
            if field in left_out:
                continue
            kind = self.kind(field, of).replace("Credits", "Amount")
            kind = kind.replace("tuple[str, ...]", "Sequence[str]")
            lines.append(f"    {field}: {kind}")
            default = of.get("default")
            otherwise = "" if default is None else f" Else {default}."
            lines += documented(of.get("description", "") + otherwise, 4)
        return "\n".join(lines)

    def names(self) -> list[str]:
        """The types to write, each behind those that it is made of."""
        order: list[str] = []

        def visit(name: str) -> None:
            if name in order or name in LEFT_OUT or name.startswith("Page_"):
                return
            schema = self.schemas.get(name, {})
            if "properties" not in schema and "allOf" not in schema:
                return
            for word in json.dumps(schema).split('"#/components/schemas/')[1:]:
                visit(word.split('"', 1)[0])
            order.append(name)

        for name in self.schemas:
            visit(name)
        return order

    def code(self) -> str:
        """The whole module."""
        models = [self.model(name) for name in self.names()]
        limits = "What a job is held to. Times are in seconds."
        terms = "What a bid is held to. Times are in seconds."
        session = "The limits of a session of a language model. Times are in seconds."
        asked = [
            self.asked("JobBody", "Limits", limits, ["model", "inputs"]),
            self.asked("BidBody", "BidTerms", terms, ["class", "price", "units"]),
            self.asked("SessionBody", "SessionTerms", session, ["model"]),
        ]
        names = sorted(["Amount", "BidTerms", "Limits", "SessionTerms", *map(called, self.names())])
        exported = "\n".join(["__all__ = [", *(f'    "{name}",' for name in names), "]"])
        wire = {here: there for there, here in FIELDS.items()}
        return HEAD.format(exported, json.dumps(wire)) + "\n\n\n".join([*asked, *models]) + "\n"


def documented(text: str, indent: int) -> list[str]:
    """A documentation, wrapped."""
    text = " ".join(text.split()).replace(", in micro-credits", "")
    text = text.replace("Micro-credits", "Credits")
    if not text:
        return []
    space = " " * indent
    if len(text) + indent + 6 <= 100:
        return [f'{space}"""{text}"""']
    lines = textwrap.wrap(text, 97 - indent - 3)
    rest = [space + line for line in textwrap.wrap(text[len(lines[0]) :].strip(), 100 - indent)]
    return [f'{space}"""{lines[0]}', *rest, f'{space}"""']


def main() -> int:
    """Write the module, or compare it."""
    code = Document(API.read_text(encoding="utf-8")).code()
    if "--check" not in sys.argv:
        MODELS.write_text(code, encoding="utf-8")
        return 0
    if MODELS.read_text(encoding="utf-8") == code:
        return 0
    print(f"{MODELS} is not what {API} says: run python {Path(__file__).name}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
