"""Small documents of every kind, made here: no file of anybody's is needed."""

from __future__ import annotations

import io
import zlib

from tests.summaries.house import TEXT


def pdf(*pages: str, image_only: bool = False) -> bytes:
    """A PDF file with one line of text per page, or pages without any."""
    contents = [
        b"q Q" if image_only else b"BT /F1 12 Tf 20 100 Td (%s) Tj ET" % page.encode("latin-1")
        for page in pages
    ]
    kids = b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, content in enumerate(contents):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 2000 200] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * number)
        )
        packed = zlib.compress(content)
        objects.append(
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed)
        )
    return _file(objects)


def pdf_bomb(megabytes: int) -> bytes:
    """A small file whose one page unpacks to so much."""
    packed = zlib.compress(b"BT /F1 12 Tf (a) Tj ET\n" * (megabytes * 45_000), 9)
    return _file(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 5 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>",
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed),
        ]
    )


def encrypted_pdf() -> bytes:
    """The same with a password, by the library itself."""
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf(TEXT))))
    writer.encrypt("secret", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def docx(text: str = TEXT) -> bytes:
    """A Word file with a heading, paragraphs, a list and a table."""
    import docx

    document = docx.Document()
    document.add_heading("The market hall", level=2)
    document.add_paragraph(text)
    document.add_paragraph("first point", style="List Bullet")
    table = document.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "rent", "halved"
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def empty_docx() -> bytes:
    import docx

    out = io.BytesIO()
    docx.Document().save(out)
    return out.getvalue()


FOREIGN = {
    "cp1252": "La réunion a été annulée à cause de la grève des employés. Les habitants "
    "ont recueilli trois mille signatures, et le conseil ne pouvait payer les réparations. ",
    "cp1251": "Совет решил закрыть рынок в мае. "
    "Жители собрали три тысячи подписей против решения. ",
    "shift_jis": "市議会は市場を閉鎖することを決めました。"
    "住民は三千の署名を集めましたが、費用が足りません。",
}

HTML = f"""<!DOCTYPE html><html><head><title>no</title><style>p {{color: red}}</style>
<script>stolen()</script></head><body><h1>The market hall</h1><p>{TEXT}</p>
<ul><li>first point</li></ul><noscript>none</noscript></body></html>"""


def _file(objects: list[bytes]) -> bytes:
    out = b"%PDF-1.4\n"
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return out + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        start,
    )
