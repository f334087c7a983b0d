from make_docs import DOCS, PARTS, WHOLE, made

for name in (*WHOLE, *PARTS):
    (DOCS / name).write_text(made(name), encoding="utf-8")
