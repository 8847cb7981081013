from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from app.summaries import documents
from tests.summaries import papers
from tests.summaries.house import TEXT, House, limits_with

for _library in ("pypdf", "docx", "inscriptis"):
    pytest.importorskip(_library, reason=f"{_library} of the extra `documents` is not installed")

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


async def sent(house: House, data: bytes, media_type: str, query: str = "") -> Any:
    return await house.post(
        path=f"/summarize{query}", content=data, headers={"content-type": media_type}
    )


def asked(house: House) -> str:
    """What the model was shown, spaces as one."""
    return " ".join(house.engine.calls[-1].messages[-1].content.split())


@pytest.mark.parametrize(
    ("data", "media_type", "also"),
    [
        (papers.pdf(TEXT, "Page two ends it."), "application/pdf", "Page two ends it."),
        (papers.docx(), DOCX, "## The market hall"),
        (papers.docx(), DOCX, "- first point"),
        (papers.docx(), DOCX, "rent | halved"),
        (papers.HTML.encode(), "text/html", "The market hall"),
        (papers.HTML.encode(), "application/xhtml+xml; charset=utf-8", "first point"),
    ],
    ids=["pdf", "docx heading", "docx list", "docx table", "html", "xhtml"],
)
async def test_a_document_is_read_and_summarised(
    house: House, data: bytes, media_type: str, also: str
) -> None:
    answer = await sent(house, data, media_type, "?max_words=20")
    assert answer.status == 200
    assert answer.json["summary"].startswith("The council closes")
    assert TEXT in asked(house)
    assert also in asked(house)
    assert "stolen" not in asked(house)
    assert "color" not in asked(house)


@pytest.mark.parametrize(
    ("data", "media_type", "status", "words"),
    [
        (b"", "application/pdf", 400, "not a readable PDF"),
        (b"hello", "application/pdf", 400, "not a readable PDF"),
        (b"%PDF-1.7\nhello", "application/pdf", 400, "PDF"),
        (papers.pdf(TEXT)[:-300], "application/pdf", 400, "PDF"),
        (papers.pdf("a", "b", image_only=True), "application/pdf", 400, "no text found"),
        (papers.encrypted_pdf(), "application/pdf", 400, "encrypted"),
        (papers.pdf(TEXT), DOCX, 400, "not a readable DOCX"),
        (b"PK\x03\x04 not a zip", DOCX, 400, "not a readable DOCX"),
        (b"\xd0\xcf\x11\xe0 encrypted office", DOCX, 400, "encrypted"),
        (papers.empty_docx(), DOCX, 400, "no text found"),
        (b"<html><body><script>x()</script></body></html>", "text/html", 400, "no text found"),
        (b"", "text/html", 400, "HTML"),
        (papers.pdf(TEXT), "image/png", 415, "application/pdf"),
        (papers.pdf(TEXT), "application/octet-stream", 415, "application/pdf"),
    ],
)
async def test_a_document_that_cannot_be_read_is_an_error_that_says_why(
    house: House, data: bytes, media_type: str, status: int, words: str
) -> None:
    answer = await sent(house, data, media_type)
    assert answer.status == status
    assert words in answer.error["message"]
    assert not house.engine.calls
    assert house.end.outcome in ("rejected", "failed")


@pytest.mark.parametrize("charset", papers.FOREIGN)
async def test_a_charset_that_nobody_declared_is_found(house: House, charset: str) -> None:
    text = papers.FOREIGN[charset]
    answer = await sent(house, (text * 4).encode(charset), "text/plain")
    assert answer.status == 200
    assert text in house.engine.calls[-1].messages[-1].content


async def test_a_page_that_declares_its_charset_is_read_in_it(house: House) -> None:
    page = f'<html><head><meta charset="iso-8859-1"></head><body>caf\xe9 {TEXT}</body></html>'
    answer = await sent(house, page.encode("latin-1"), "text/html")
    assert answer.status == 200
    assert f"caf\xe9 {TEXT}" in asked(house)


class TestForms:
    async def test_a_file_and_its_options_come_as_a_form(self, house: House) -> None:
        answer = await house.post(
            files={"file": ("hall.pdf", papers.pdf(TEXT), "application/pdf")},
            data={"max_words": "4", "style": "headline"},
        )
        assert answer.status == 200
        assert answer.json["summary"] == "The council closes the\u2026"
        assert TEXT in asked(house)

    @pytest.mark.parametrize("name", ["a.pdf", "a.docx", "a.md", "a.html"])
    async def test_a_file_of_no_type_is_known_by_its_name(self, house: House, name: str) -> None:
        data = {
            "a.pdf": papers.pdf(TEXT),
            "a.docx": papers.docx(),
            "a.md": TEXT.encode(),
            "a.html": papers.HTML.encode(),
        }[name]
        answer = await house.post(files={"file": (name, data, "application/octet-stream")})
        assert answer.status == 200
        assert TEXT in asked(house)

    async def test_several_files_are_documents_each_with_its_own_error(self, house: House) -> None:
        answer = await house.post(
            files=[
                ("file", ("a.pdf", papers.pdf(TEXT), "application/pdf")),
                ("file", ("b.pdf", b"%PDF-1.7 broken", "application/pdf")),
                ("file", ("c.txt", TEXT.encode(), "text/plain")),
            ]
        )
        results = answer.json["results"]
        assert [result["id"] for result in results] == ["a.pdf", "b.pdf", "c.txt"]
        assert ["error" in result for result in results] == [False, True, False]

    async def test_a_text_may_be_a_field(self, house: House) -> None:
        answer = await house.post(files={"text": (None, TEXT)})
        assert answer.status == 200

    @pytest.mark.parametrize(
        ("content", "content_type"),
        [
            (b"--x\r\n", "multipart/form-data; boundary=x"),
            (
                b"--x\r\ncontent-disposition: form-data; name=file; filename=a\r\n\r\nabc",
                "multipart/form-data; boundary=x",
            ),
            (b"--x--\r\n", "multipart/form-data; boundary=x"),
            (b"hello", "multipart/form-data; boundary=x"),
            (b"--x--", "multipart/form-data"),
            (
                b"--x\r\ncontent-disposition: form-data; name=document; filename=a"
                b"\r\n\r\nabc\r\n--x--\r\n",
                "multipart/form-data; boundary=x",
            ),
            (
                b"--x\r\ncontent-disposition: form-data; name=style\r\n\r\npoem\r\n--x--\r\n",
                "multipart/form-data; boundary=x",
            ),
            (
                b"--x\r\ncontent-disposition: form-data; name=q\r\n\r\n1\r\n" * 300 + b"--x--\r\n",
                "multipart/form-data; boundary=x",
            ),
        ],
        ids=[
            "nothing",
            "cut off",
            "empty",
            "no form",
            "no boundary",
            "other name",
            "bad option",
            "many",
        ],
    )
    async def test_a_bad_form_is_an_error_of_the_client(
        self, house: House, content: bytes, content_type: str
    ) -> None:
        answer = await house.post(content=content, headers={"content-type": content_type})
        assert answer.status == 400
        assert not house.engine.calls


class TestProcesses:
    async def test_a_document_that_takes_too_long_is_given_up(self, house: House) -> None:
        house.limits = limits_with(extract_seconds=0.02)
        answer = await sent(house, papers.pdf(TEXT), "application/pdf")
        assert (answer.status, answer.error["code"]) == (413, "too_large")

    async def test_a_bomb_ends_its_own_process_alone(self, house: House) -> None:
        """It unpacks to far more than a process may hold or chew."""
        house.limits = limits_with(extract_seconds=1)
        answer = await sent(house, papers.pdf_bomb(200), "application/pdf")
        assert answer.status in (400, 413)
        assert (await house.post({"text": TEXT})).status == 200

    async def test_a_client_that_leaves_ends_the_process(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun: list[asyncio.subprocess.Process] = []
        real = asyncio.create_subprocess_exec

        async def spy(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
            begun.append(await real("sleep", "60", **options))
            return begun[-1]

        monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
        port = int(house.url.rsplit(":", 1)[1])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        data = papers.pdf(TEXT)
        writer.write(
            b"POST /summarize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/pdf\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(data), data)
        )
        while not begun:  # noqa: ASYNC110 - nobody announces these
            await asyncio.sleep(0.001)
        start = time.monotonic()
        writer.transport.abort()
        while not house.ends:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert begun[0].returncode is not None
        assert time.monotonic() - start < 30
        assert house.end.outcome == "aborted"

    async def test_without_the_extra_the_error_names_it(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(documents, "find_spec", lambda _: None)
        answer = await sent(house, papers.pdf(TEXT), "application/pdf")
        assert answer.status == 415
        assert "documents" in answer.error["message"]
