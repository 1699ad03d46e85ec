#compdef aerie
# zsh completion for aerie: the program says what there is (aerie --complete), this script finds files and sessions
_aerie() {
    local line word
    local -a plain names
    for line in ${(f)"$($words[1] --complete ${(Q)words[2,CURRENT-1]} "${(Q)words[CURRENT]}" 2>/dev/null)"}; do
        word=${line%%$'\t'*}
        case $word in
            :files) _files ;;
            :dirs) _files -/ ;;
            :sessions) compadd -- last ${(f)"$($words[1] logs -n 50 --json 2>/dev/null |
                sed -n 's/^{"id":"[0-9A-Z]*","number":\([1-9][0-9]*\),.*/\1/p')"} ;;
            *=|bug.) compadd -S '' -- $word ;;
            *) names+=($word) plain+=("${word//:/\\:}:${line#*$'\t'}") ;;
        esac
    done
    (( ! $#names )) || _describe -o value plain names
}

_aerie "$@"
