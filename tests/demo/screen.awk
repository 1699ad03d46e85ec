# Cells of a terminal (tmux capture-pane -e: text with SGR sequences) as an SVG. Bytes, not characters: run with LC_ALL=C.
function hex(r, g, b) { return sprintf("#%02x%02x%02x", r, g, b) }
function palette(n,    i, v) {
    if (n < 16) return base[n]
    if (n > 231) { v = 8 + 10 * (n - 232); return hex(v, v, v) }
    i = n - 16
    return hex(step[int(i / 36)], step[int(i / 6) % 6], step[i % 6])
}
function reset() { fg = ""; bg = ""; bold = dim = italic = under = rev = 0 }
# One SGR sequence: a list of numbers parted by ";".
function sgr(list,    p, n, i, c) {
    n = split(list == "" ? "0" : list, p, /[;:]/)
    for (i = 1; i <= n; i++) {
        c = p[i] + 0
        if (c == 0) reset()
        else if (c == 1) bold = 1
        else if (c == 2) dim = 1
        else if (c == 3) italic = 1
        else if (c == 4) under = 1
        else if (c == 7) rev = 1
        else if (c == 22) bold = dim = 0
        else if (c == 23) italic = 0
        else if (c == 24) under = 0
        else if (c == 27) rev = 0
        else if (c == 39) fg = ""
        else if (c == 49) bg = ""
        else if (c == 38 || c == 48) {
            if (p[i + 1] == 5) { v = palette(p[i + 2] + 0); i += 2 }
            else { v = hex(p[i + 2], p[i + 3], p[i + 4]); i += 4 }
            if (c == 38) fg = v; else bg = v
        } else if (c >= 30 && c <= 37) fg = palette(c - 30)
        else if (c >= 40 && c <= 47) bg = palette(c - 40)
        else if (c >= 90 && c <= 97) fg = palette(c - 82)
        else if (c >= 100 && c <= 107) bg = palette(c - 92)
    }
}
# A run of equal cells, from column `from` on.
function put(text, from, n,    f, b, style) {
    if (!n) return
    f = fg == "" ? ink : fg; b = bg == "" ? paper : bg
    if (rev) { style = f; f = b; b = style }
    if (b != paper) printf "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", left + from * cw, top + row * ch, n * cw, ch, b
    if (text ~ /^ *$/) return
    style = (bold ? " font-weight=\"bold\"" : "") (italic ? " font-style=\"italic\"" : "") (under ? " text-decoration=\"underline\"" : "") (dim ? " opacity=\"0.65\"" : "")
    gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text)
    printf "<text x=\"%.1f\" y=\"%.1f\" textLength=\"%.1f\" fill=\"%s\"%s>%s</text>\n", left + from * cw, top + row * ch + base_line, n * cw, f, style, text
}
BEGIN {
    split("000000 cd3131 0dbc79 e5e510 2472c8 bc3fbc 11a8cd e5e5e5 666666 f14c4c 23d18b f5f543 3b8eea d670d6 29b8db ffffff", names, " ")
    for (i = 1; i <= 16; i++) base[i - 1] = "#" names[i]
    split("0 95 135 175 215 255", levels, " ")
    for (i = 1; i <= 6; i++) step[i - 1] = levels[i]
    cw = 8.4; ch = 17; left = top = 14; base_line = 13; ink = "#d4d4d4"; paper = "#1e1e1e"
    w = cols * cw + 2 * left; h = rows * ch + 2 * top
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" font-family=\"ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace\" font-size=\"14\" xml:space=\"preserve\">\n", w, h, w, h
    printf "<rect width=\"100%%\" height=\"100%%\" rx=\"8\" fill=\"%s\"/>\n", paper
    reset()
}
{
    row = NR - 1; col = from = 0; text = ""; line = $0
    while (line != "") {
        if (match(line, /^\033\[[0-9;:]*m/)) {
            put(text, from, col - from); text = ""; from = col
            sgr(substr(line, 3, RLENGTH - 3)); line = substr(line, RLENGTH + 1)
        } else if (match(line, /^\033[()][A-Z0-9]/) || match(line, /^[\016\017]/)) {
            line = substr(line, RLENGTH + 1)
        } else if (match(line, /^[\300-\377][\200-\277]*/) || match(line, /^./)) {
            text = text substr(line, 1, RLENGTH); line = substr(line, RLENGTH + 1); col++
        }
    }
    put(text, from, col - from)
}
END { print "</svg>" }
