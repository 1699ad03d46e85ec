# fish completion for aerie: the program says what there is (aerie --complete), this script finds files and sessions
function __aerie_complete
    set -l words (commandline -opc)
    set -l cur (commandline -ct)
    for line in ($words[1] --complete $words[2..-1] "$cur" 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path "$cur"
            case :dirs
                __fish_complete_directories "$cur"
            case :sessions
                echo last
                $words[1] logs -n 50 --json 2>/dev/null | sed -n 's/^{"id":"[0-9A-Z]*","number":\([1-9][0-9]*\),.*/\1/p'
                __fish_complete_suffix .aerie
            case '*'
                echo $line
        end
    end
end
complete -c aerie -f -k -a '(__aerie_complete)'
