# bash completion for aerie
_aerie() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} word before=aerie cmd= name=
    # --flag=value and name=value are three words to readline
    if [ "$cur" = = ]; then cur= name=$prev
    elif [ "$prev" = = ]; then prev=${COMP_WORDS[COMP_CWORD-2]} name=$prev; fi
    local commands="chat run serve logs show replay diff parity export import pack db tokenize golden bench bugs doctor help"
    local settings="temperature= top_k= top_p= min_p= seed= max_tokens= spec= draft.steps=
        draft.topk= draft.nodes= draft.shape= chunk= forget= check= ring= gauge.ms= graph= verbose= think="
    local common="--ascii --color --quiet --no-sandbox --help --version"
    local talk="--model --draft --require-draft --eagle-capture --device --precision --kv --weights --draft-weights --load --threads --raw --param
        --system --seed --no-spec --no-graph --context --page-size --full-pages --swa-pages --continue
        --session --fork --log-level --no-log --seal --keep-days --keep-sessions --max-size --at-limit --db --json --sanitize --verbose --check --bug
        --remote --api-key-file --kv-events --header --break"
    local changes="model= draft= eagle_capture= device= precision= kv= weights= draft_weights= threads= raw=
        context= page_size= full_pages= swa_pages= bug."
    local synthetic="gpt-oss-20b gpt-oss-120b gemma-3-270m gemma-3-1b gemma-3-4b gemma-3-27b gemma-4-E4B small-moe-32 small-moe-128"
    # flags that take a value, with blanks around each
    local valued=" -m --model -p --param -s --system -f --file -o --output --query --limit --a --b --with --goto --format --steps
        --plan --issue --older-than --keep --to-size --head --port --host --api-key-file --model-name --cors --try --synthetic
        --cublas --draft --eagle-capture --device --precision --kv --weights --draft-weights --load --threads --remote
        --kv-events --header --break --seed --check --bug --batch --lanes --context --page-size --full-pages --swa-pages
        --session --log-level --db --seal --keep-days --keep-sessions --max-size --at-limit --script --color --theme
        --sanitize "
    valued=${valued//$'\n'/ }
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case $valued in *" $before "*) ;; *)
            case " $commands " in *" $word "*) cmd=$word; break ;; esac ;;
        esac
        before=$word
    done
    case $cmd in # where they differ
        logs) valued+="-q -n " ;;
        parity) valued+="-n " ;;
        replay) valued=${valued/ --check / } ;;
    esac
    local flags=
    case $cmd in
        ''|chat) flags="$talk --plain --tui --theme --no-mouse --script --readonly" ;;
        run) flags="$talk --file --batch --lanes" ;;
        serve) flags="--port --host --api-key-file --model-name --cors --lanes --model --draft --require-draft --eagle-capture --device
            --precision --kv --weights --draft-weights --load --threads --raw --param --seed --no-spec --no-graph --context --page-size
            --full-pages --swa-pages --check --bug --log-level --no-log --seal --keep-days --keep-sessions --max-size --at-limit --db --verbose" ;;
        logs) flags="--query --limit --model --db --json" ;;
        show) flags="--db --json" ;;
        replay) flags="--check --verbose --plain --tui --script --theme --no-mouse --with --forced --goto --model --draft --device --precision --kv --weights --draft-weights --load --threads --db --json" ;;
        diff) flags="--with --log-only --forced --model --draft --device --precision --kv --weights --draft-weights --load --threads --db --json" ;;
        parity) flags="--a --b --control --api-key-file --header --limit --lanes --model --draft --eagle-capture --device --precision --kv
            --weights --draft-weights --load --threads --raw --param --system --seed --no-graph --context --page-size
            --full-pages --swa-pages --check --bug --json" ;;
        export) flags="--format --output --db" ;;
        import) flags="--seal --db --json" ;;
        pack) flags="--steps --with-text --no-ids --plan --issue --output --model --draft --device --precision --kv --threads --db --json" ;;
        db) flags="--older-than --keep --to-size --dry-run --head --seal --db --json" ;;
        tokenize) flags="--model --special --jsonl" ;;
        golden) flags="--draft --eagle-capture --device --precision --kv --threads --json" ;;
        bench) flags="--synthetic --cublas --short --model --draft --device --precision --kv --weights --draft-weights --load --threads --json" ;;
        bugs) flags="--try --model --draft --json" ;;
        doctor) flags="--remote --api-key-file --kv-events --header --model --draft --device --precision --kv --db --json" ;;
        help) flags= ;;
    esac
    case $name in
        spec|graph|verbose|think|bug.*) COMPREPLY=($(compgen -W "on off" -- "$cur")); return ;;
        check) COMPREPLY=($(compgen -W "off on strict" -- "$cur")); return ;;
        forget) COMPREPLY=($(compgen -W "auto ask oldest never" -- "$cur")); return ;;
        -*|'') ;;
        *) return ;; # of another name: files, if anything
    esac
    case $prev in
        --draft) compopt -o dirnames 2>/dev/null; COMPREPLY=($(compgen -W ngram -- "$cur")); return ;;
        -m|--model) [ "$cmd" = logs ] || compopt -o dirnames 2>/dev/null; return ;;
        --device) COMPREPLY=($(compgen -W "auto cpu cuda" -- "$cur")); return ;;
        --weights|--draft-weights) COMPREPLY=($(compgen -W "stored fp8" -- "$cur")); return ;;
        --load) COMPREPLY=($(compgen -W "auto map copy" -- "$cur")); return ;;
        --precision) COMPREPLY=($(compgen -W "bf16 f32" -- "$cur")); return ;;
        --kv) COMPREPLY=($(compgen -W "auto fp8" -- "$cur")); return ;;
        --synthetic) COMPREPLY=($(compgen -W "$synthetic" -- "$cur")); return ;;
        --issue) COMPREPLY=($(compgen -W "sglang vllm llama.cpp" -- "$cur")); return ;;
        --at-limit) COMPREPLY=($(compgen -W "warn stop" -- "$cur")); return ;;
        --check) [ "$cmd" = replay ] || { COMPREPLY=($(compgen -W "off on strict" -- "$cur")); return; } ;;
        --theme) COMPREPLY=($(compgen -W "auto dark light" -- "$cur")); return ;;
        --color|--sanitize) COMPREPLY=($(compgen -W "auto always never" -- "$cur")); return ;;
        --log-level) COMPREPLY=($(compgen -W "off text steps tree" -- "$cur")); return ;;
        --page-size) COMPREPLY=($(compgen -W "1 2 4 8 16 32 64" -- "$cur")); return ;;
        --format) COMPREPLY=($(compgen -W "jsonl md" -- "$cur")); return ;;
        -p|--param) compopt -o nospace 2>/dev/null; COMPREPLY=($(compgen -W "$settings" -- "$cur")); return ;;
        --a|--b|--with) compopt -o nospace 2>/dev/null; COMPREPLY=($(compgen -W "$settings $changes" -- "$cur")); return ;;
        --session) _aerie_sessions; return ;;
    esac
    # the value of another flag is no command and no session: a file, if anything
    case $valued in *" $prev "*) return ;; esac
    case $cmd,$cur in
        *,-*) COMPREPLY=($(compgen -W "$flags $common" -- "$cur")) ;;
        ,*) COMPREPLY=($(compgen -W "$commands" -- "$cur")) ;;
        help,*) [ "$prev" != help ] || COMPREPLY=($(compgen -W "$commands" -- "$cur")) ;;
        db,*) [ "$prev" != db ] || COMPREPLY=($(compgen -W "path check repair backup sql prune vacuum pin unpin" -- "$cur")) ;;
        show,*|replay,*|diff,*|export,*|pack,*) _aerie_sessions ;;
    esac
}
_aerie_sessions() {
    COMPREPLY=($(compgen -W "last $(aerie logs -n 50 --json 2>/dev/null |
        sed -n 's/^{"id":"[0-9A-Z]*","number":\([1-9][0-9]*\),.*/\1/p')" -- "$cur"))
}
# default: file names where the function has no answer (files of flags, packs)
complete -o default -F _aerie aerie
