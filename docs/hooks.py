"""Hook of the site: show reStructuredText roles and literal blocks of docstrings as Markdown shows code."""

import re

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?([^<]+)</code>")


def on_page_content(html: str, **_: object) -> str:
    """Replace ``:class:`X``` by the code X, and a double colon at the end of a paragraph by a single one."""
    return ROLE.sub(r"<code>\1</code>", html).replace("::</p>", ":</p>")
