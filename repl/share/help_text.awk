# Writes the C source of what /help knows besides commands and settings (repl/cmd/help_text.h):
#   awk -f help_text.awk from=topics topics.txt from=examples examples.txt from=manual aerie.1
# topics.txt and examples.txt have parts that begin with "= NAME: TITLE" and "= NAME". Of the manual
# page each paragraph becomes a part, with a line for each sentence; generated parts are left out,
# because the tables they come from are searched themselves.

# A text as a C string, a line of it each.
function quoted(s,    i, c, out) {
    for (i = 1; i <= length(s); i++) {
        c = substr(s, i, 1)
        out = out (c == "\\" || c == "\"" ? "\\" c : c == "\n" ? "\\n\"\n     \"" : c)
    }
    return "\"" out "\""
}
# topics.txt is broken into lines of at most 76 columns. What was one paragraph becomes one line again:
# an indented line goes on with the line before it, and so does a line of prose if the line before is
# prose whose next word did not fit. A line of two columns (two blanks between them) is not prose.
function topic_line(    prose, joins) {
    if (length($0) > 76) { print "topics.txt: too long: " $0 > "/dev/stderr"; failed = 1; exit 1 }
    prose = $0 ~ /^[^ ]/ && $0 !~ /[^ ]  /
    joins = $0 ~ /^ / || (prose && was_prose && length(before) + 1 + length($1) > 76)
    if (joins) sub(/\n$/, " ", text[name])
    text[name] = text[name] (joins ? trimmed($0) : $0) "\n"
    before = $0; was_prose = prose
}
function trimmed(s) { sub(/^[ \n]+/, "", s); sub(/[ \n]+$/, "", s); return s }

from == "topics" && /^= / {
    at = index($0, ": "); name = substr($0, 3, at - 3)
    order[++topics] = name; title[name] = substr($0, at + 2); was_prose = 0; next
}
from == "topics" { topic_line(); next }
from == "examples" && /^= / {
    name = substr($0, 3)
    if (!(name in title)) { print "examples.txt: no topic " name > "/dev/stderr"; failed = 1; exit 1 }
    next
}
from == "examples" { example[name] = example[name] $0 "\n"; next }

# ---- the manual page ----

# The words of a macro's line, as roff splits them: "two words" is one.
function words(line,    n, c, i, open, word, any) {
    split("", arg); n = 0; word = ""; any = 0
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        if (c == "\"") { open = !open; any = 1 }
        else if (c == " " && !open) { if (any || word != "") arg[++n] = word; word = ""; any = 0 }
        else word = word c
    }
    if (any || word != "") arg[++n] = word
    return n
}
function plain(s) {
    gsub(/\\f[BIRP]/, "", s); gsub(/\\-/, "-", s); gsub(/\\\(lq|\\\(rq/, "\"", s); gsub(/\\\(aq/, "'", s)
    gsub(/\\&|\\\|/, "", s); gsub(/\\ /, " ", s); gsub(/\\e/, "\\", s)
    return s
}
function add(s) {
    if (s ~ /^[.,;:)]/) sub(/ $/, "", body)
    if (want_tag) { tag = trimmed(s); want_tag = 0 } else body = body s " "
}
function flush() {
    body = trimmed(body)
    if (body != "" && section != "SYNOPSIS" && section != "NAME") {
        gsub(/[.] +/, ".\n", body)
        man_section[++parts] = section; man_tag[parts] = tag; man_text[parts] = body
    }
    body = ""
}
/^\.\\" make docs:/ { flush(); skip = 1; next }
/^\.\\" end/ { skip = 0; next }
skip || /^\.\\"/ { next }
/^\.(SH|SS) / { flush(); section = $0; sub(/^\.S[HS] /, "", section); gsub(/"/, "", section); tag = ""; next }
/^\.TP/ { flush(); want_tag = 1; tag = ""; next }
/^\.(PP|P|RS|RE)/ { flush(); tag = ""; next }
/^\.(IP|br|TH|nf|fi)/ { if (/^\.br/ && body != "") body = trimmed(body) "\n"; next }
/^\.[A-Z]+ / {
    macro = $1; n = words(substr($0, length(macro) + 2)); line = ""
    for (i = 1; i <= n; i++) line = line (i > 1 && length(macro) == 2 ? " " : "") arg[i]
    add(plain(line)); next
}
{ add(plain($0)) }

END {
    if (failed) exit 1
    flush()
    print "/* Written by repl/share/help_text.awk. */\n#include \"repl/cmd/help_text.h\"\n"
    print "const struct topic help_topics[] = {"
    for (i = 1; i <= topics; i++) {
        name = order[i]
        print "    {" quoted(name) ", " quoted(title[name]) ",\n     " quoted(trimmed(text[name]) "\n") ",\n     " quoted(example[name] == "" ? "" : trimmed(example[name]) "\n") "},"
    }
    print "};\nconst int help_n_topic = " topics ";\n\nconst struct man_part help_manual[] = {"
    for (i = 1; i <= parts; i++)
        print "    {" quoted(man_section[i]) ", " quoted(man_tag[i]) ",\n     " quoted(man_text[i]) "},"
    print "};\nconst int help_n_manual = " parts ";"
}
