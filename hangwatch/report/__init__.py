"""Reports: the content of report.json, and the text and the page made from it.

``build_report`` (build.py) turns an Evidence into report.json's content, ``write_incident``
(files.py) stores it with the raw evidence, ``format_verdict`` (terminal.py) prints it,
``render_page`` (html/) draws it. The live output and that of ``hangwatch report`` come from
the same content.
"""
