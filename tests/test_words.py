"""Code and messages use the words of the field: what a reader of PyTorch, TRL and a statistics course knows."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted([*(ROOT / "workbook").rglob("*.py"), *(ROOT / "tests").rglob("*.py")])
VAGUE = {"told", "said", "found", "each", "left", "gone"}  # name the thing: rows, table, title, summary_line
FUNCTIONS = re.compile(r"say_\w+|tell|_tell|tells|complaints|pace|long_enough|agree|from_all")
CONSTANTS = {
    *("ALIKE", "HALF", "TIMES", "AGREE", "LEAST", "MOST", "ENOUGH", "AGAIN", "ROUGH", "BEFORE", "FREE", "DRAWN"),
    *("LOOKS", "PATIENCE", "HUB_PATIENCE"),
}
PHRASES = re.compile(
    r"dealt anew|\bdeals?\b|\bA less B\b|foretell|gone over again|go(?:es|ing)? over (?:a|the) batch|"
    r"what runs come to|what no reward asked for|who follows|what is left of|all the same|lower end included|"
    r"on the average|a rougher interval|\bcompany\b",
    re.I,
)

KEPT = {  # names in measured tables that are committed, and a text of the recorded ledger
    "tests/test_studies.py": {"dealt anew"},
    "workbook/topics/flips/claims.py": {"foretell"},
    "workbook/topics/flips/sharing.py": {"company"},
    "workbook/topics/flips/study.py": {"dealt anew"},
}


def bound_names(tree: ast.AST) -> list[tuple[str, int]]:
    """Names that code gives to values, with their lines."""
    names = [
        (node.id, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return names + [(node.arg, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.arg)]


def vague_names(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [f"{name} (line {line})" for name, line in bound_names(tree) if name in VAGUE | CONSTANTS]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return names + [f"{node.name}()" for node in functions if FUNCTIONS.fullmatch(node.name)]


def private_phrases(path: Path) -> list[str]:
    """Phrases in strings and comments."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    texts = [(token.string, token.start[0]) for token in tokens if token.type in kinds]
    matches = [(match[0], line) for text, line in texts for match in PHRASES.finditer(text)]
    kept = KEPT.get(path.relative_to(ROOT).as_posix(), ())
    return [f"{phrase} (line {line})" for phrase, line in matches if phrase.lower() not in kept]


def test_names_say_what_they_hold():
    assert {str(path.relative_to(ROOT)): names for path in FILES if (names := vague_names(path))} == {}


def test_texts_use_the_words_of_the_field():
    others = [path for path in FILES if path != Path(__file__).resolve()]  # this file holds the list itself
    assert {str(path.relative_to(ROOT)): phrases for path in others if (phrases := private_phrases(path))} == {}


if __name__ == "__main__":  # what is to be done: python tests/test_words.py
    for path in FILES:
        for finding in [*vague_names(path), *(private_phrases(path) if path != Path(__file__).resolve() else [])]:
            print(f"{path.relative_to(ROOT)}: {finding}")
