"""The text of one document, read in a process of its own: `python -m app.summaries.extract KIND`.

The document comes on standard input, its text leaves on standard output as JSON. Documents come
from strangers and their formats are intricate: whatever happens here, in however much memory or
time, happens to this process alone. It is started for one document, with limits, and knows no
secret.
"""

# ruff: noqa: PLC0415 - each process imports the library of its one document alone

from __future__ import annotations

import io
import json
import resource
import sys
from collections.abc import Iterator

from app.errors import FairgateError, InvalidRequest
from app.summaries.charsets import decode

_MEMORY_BYTES = 2 * 1024**3
_MOST_CHARACTERS = 32 * 1024**2


def text_of_pdf(data: bytes) -> str:
    """The text layer of a PDF file, page by page."""
    from pypdf import PasswordType, PdfReader

    reader = PdfReader(io.BytesIO(data), strict=False)
    if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
        raise InvalidRequest("the PDF file is encrypted: send it without a password")
    pages = [page.extract_text() for page in reader.pages]
    if not any(page.strip() for page in pages):
        raise InvalidRequest(
            "no text found in the PDF file: its pages are images; send it through OCR first"
        )
    return "\f".join(pages)


def text_of_docx(data: bytes) -> str:
    """The paragraphs and tables of a Word file, in order; headings as Markdown has them."""
    import docx

    text = "\n\n".join(_blocks(docx.Document(io.BytesIO(data))))
    if not text.strip():
        raise InvalidRequest("no text found in the DOCX file")
    return text


def _blocks(document: object) -> Iterator[str]:
    from docx.document import Document
    from docx.table import Table

    if not isinstance(document, Document):
        return
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            yield "\n".join(" | ".join(cell.text for cell in row.cells) for row in block.rows)
            continue
        style = (block.style.name if block.style is not None else None) or ""
        level = style.removeprefix("Heading ")
        if style == "Title" or (style.startswith("Heading ") and level.isdigit()):
            yield f"{'#' * (int(level) if level.isdigit() else 1)} {block.text}"
        else:
            yield f"- {block.text}" if style.startswith("List") else block.text


def text_of_html(data: bytes, charset: str | None) -> str:
    """The text of a page as a browser would show it, without scripts and styles."""
    import lxml.html  # type: ignore[import-untyped]
    from inscriptis import Inscriptis  # type: ignore[import-untyped]
    from inscriptis.model.config import ParserConfig  # type: ignore[import-untyped]

    markup = decode(data, charset, markup=True)
    parser = lxml.html.HTMLParser(encoding="utf-8")  # whatever the page itself says
    tree = lxml.html.document_fromstring(markup.encode("utf-8", "replace"), parser=parser)
    text: str = Inscriptis(tree, ParserConfig()).get_text()
    if not text.strip():
        raise InvalidRequest("no text found in the HTML page")
    return text


def extract(kind: str, data: bytes, charset: str | None) -> str:
    """The text of a document of this kind.

    Raises:
        FairgateError: naming what the client should do.
    """
    try:
        match kind:
            case "pdf":
                text = text_of_pdf(data)
            case "docx":
                text = text_of_docx(data)
            case _:
                text = text_of_html(data, charset)
    except FairgateError:
        raise
    except RecursionError:
        raise InvalidRequest(f"the {kind.upper()} file is nested too deeply") from None
    except MemoryError:
        raise InvalidRequest(f"the {kind.upper()} file is too large when unpacked") from None
    except Exception as error:
        if "crypt" in f"{type(error).__name__} {error}".lower():
            raise InvalidRequest(
                f"the {kind.upper()} file is encrypted: send it without a password"
            ) from None
        raise InvalidRequest(
            f"this is not a readable {kind.upper()} file: it is damaged or of another type"
        ) from None
    if len(text) > _MOST_CHARACTERS:
        raise InvalidRequest(f"the {kind.upper()} file is too large when unpacked")
    return text


def main(arguments: list[str]) -> int:
    """Answer on standard output, problems of the document included."""
    kind, cpu_seconds, charset = arguments[0], int(arguments[1]), arguments[2] or None
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer = {"text": extract(kind, sys.stdin.buffer.read(), charset)}
    except FairgateError as error:
        answer = {"problem": error.message}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
