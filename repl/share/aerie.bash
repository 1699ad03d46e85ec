# bash completion for aerie: the program says what there is (aerie --complete), this script finds files and sessions
_aerie() {
    local -a words=() found=()
    local word join='' cur=${COMP_WORDS[COMP_CWORD]}
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do # --flag=value and name=value are three words to readline
        if [ -n "$join" ]; then words[-1]+=$word join=
        elif [ "$word" = = ] && [ ${#words[@]} -gt 0 ]; then words[-1]+='=' join=1
        else words+=("$word"); fi
    done
    [ "$cur" != = ] || cur=
    while IFS=$'\t' read -r word _; do
        case $word in
            :files) ;; # the default, below
            :dirs) compopt -o dirnames 2>/dev/null ;;
            :sessions) found+=(last $("${COMP_WORDS[0]}" logs -n 50 --json 2>/dev/null |
                sed -n 's/^{"id":"[0-9A-Z]*","number":\([1-9][0-9]*\),.*/\1/p')) ;;
            *=|bug.) compopt -o nospace 2>/dev/null; found+=("$word") ;;
            *) found+=("${word#*=}") ;;
        esac
    done < <("${COMP_WORDS[0]}" --complete "${words[@]}" 2>/dev/null)
    COMPREPLY=($(compgen -W "${found[*]}" -- "$cur"))
}
# default: file names where the function has no answer (files of flags, packs)
complete -o default -F _aerie aerie
