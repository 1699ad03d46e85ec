#compdef aerie
# zsh completion for aerie

_aerie_sessions() {
    local -a ids
    ids=(last ${(f)"$(aerie logs -n 50 --json 2>/dev/null | sed -n 's/^{"id":"[0-9A-Z]*","number":\([1-9][0-9]*\),.*/\1/p')"})
    compadd -a ids
}

_aerie_settings() {
    compadd -S '' temperature= top_k= top_p= min_p= seed= max_tokens= spec= draft.steps= \
        draft.topk= draft.nodes= draft.shape= chunk= forget= check= ring= gauge.ms= graph= verbose= think=
}

_aerie_changes() {
    _aerie_settings
    compadd -S '' model= draft= eagle_capture= device= precision= kv= weights= draft_weights= threads= raw= context= \
        page_size= full_pages= swa_pages= bug.
}

_aerie() {
    local -a common folders device model log json engine system talk cut server
    common=('--ascii[no line or block characters]' '--color[colours]:when:(auto always never)'
            '(-q --quiet)'{-q,--quiet}'[no notices]' '--no-sandbox[may write anywhere, run programs]' '(-h --help)'{-h,--help}'[help]'
            '(-V --version)'{-V,--version}'[version]')
    folders=('(-m --model)'{-m,--model}'[checkpoint folder]:folder:_files -/'
             '--draft[draft folder, or ngram]:folder:{compadd ngram; _files -/}')
    device=('--device[device]:device:(auto cpu cuda)' '--precision[precision on CUDA]:precision:(bf16 f32)' '--kv[keys and values]:type:(auto fp8)')
    log=('--db[session database]:file:_files') json=('--json[JSON for machines]')
    model=($folders $device $json)
    cut=('--load[CPU: weights in mapped files, or a copy]:how:(auto map copy)' '--weights[matrices cut to 8 bits]:weights:(stored fp8)' '--draft-weights[those of the draft]:weights:(stored fp8)')
    engine=($cut '--eagle-capture[boundaries the head reads]:list:' '--threads[CPU threads]:number:'
          '--raw[no chat format]' '*'{-p,--param}'[set a setting]:setting:_aerie_settings' '--seed[seed]:number:'
          '--check[how much is checked]:level:(off on strict)' '--bug[historical fault on]:bug:' '--no-graph[replay no recorded cycle]' '--context[longest context]:tokens:'
          '--page-size[tokens a page]:size:(1 2 4 8 16 32 64)'
          '--full-pages[pages of the full pool]:number:'
          '--swa-pages[pages of the sliding-window pool]:number:')
    server=('--remote[chat with a server]:address:' '--api-key-file[key for the server]:file:_files'
            '--kv-events[KV events of the server]:address:'
            '*--header[header for the server]:header:')
    system=('(-s --system)'{-s,--system}'[system prompt]:text:')
    talk=($engine $log $system $server '--require-draft[stop when the draft does not fit]' '*--break[pause after steps where this holds]:condition:' '--no-spec[do not draft]' '(-c --continue)'{-c,--continue}'[take up the latest session]'
          '--session[take up a session]:session:_aerie_sessions'
          '--fork[take up a copy]'
          '--log-level[how much is saved]:level:(off text steps tree)'
          '(-n --no-log)'{-n,--no-log}'[save nothing]'
          '--seal[key that seals the log]:file:_files' '--keep-days[remove older sessions]:days:' '--keep-sessions[remove all but N]:n:' '--max-size[limit of the log in MB]:MB:' '--at-limit[what the limit does]:what:(warn stop)'
          '--sanitize[escape control characters]:when:(auto always never)'
          '(-v --verbose)'{-v,--verbose}'[statistics]')
    local -a commands
    commands=('chat:talk with the model' 'run:answer one prompt' 'serve:serve the model to OpenAI clients' 'logs:list saved sessions'
              'show:print a session, a turn or a step' 'replay:play a session, or run it again' 'diff:find the first difference of two runs' 'parity:compute prompts twice, compare ids' 'import:take replies of servers into the log'
              'export:write a session to a file'
              'pack:write a session to one file for others' 'db:care for the database'
              'tokenize:print token ids'
              'golden:compare with reference tensors' 'bench:measure speed' 'bugs:historical faults' 'doctor:what was found here' 'help:flags and settings')
    local cmd=${words[(r)(chat|run|serve|logs|show|replay|diff|parity|export|import|pack|db|tokenize|golden|bench|bugs|doctor|help)]}
    case $cmd in
        '') _arguments $common $model $talk '--plain[lines]' '--tui[full screen]' '--theme[colours]:theme:(auto dark light)' \
                '--script[lines from a file]:file:_files' '--no-mouse[no clicks]' '--readonly[save nothing]' ':command:{_describe command commands}' ;;
        chat) _arguments $common $model $talk '--plain[lines]' '--tui[full screen]' '--theme[colours]:theme:(auto dark light)' \
                '--script[lines from a file]:file:_files' '--no-mouse[no clicks]' '--readonly[save nothing]' '*::' ;;
        run) _arguments $common $model $talk '(-f --file)'{-f,--file}'[text behind the prompt]:file:_files' '--batch[many prompts]:file:_files' '--lanes[prompts at once]:n:' '*:prompt:' ;;
        serve) _arguments $common $folders $device $log $engine '--require-draft[stop when the draft does not fit]' '--port[port]:number:' '--host[address]:address:' \
                '--api-key-file[key that clients send]:file:_files' '--cors[origin whose pages may ask]:origin:' "--model-name[model's name for clients]:name:" \
                '--lanes[prompts at once]:n:' '--no-spec[do not draft]' '(-n --no-log)'{-n,--no-log}'[save nothing]' \
                '--seal[key that seals the log]:file:_files' '--keep-days[remove older sessions]:days:' '--keep-sessions[remove all but N]:n:' '--max-size[limit of the log in MB]:MB:' '--at-limit[what the limit does]:what:(warn stop)' \
                '--log-level[how much is saved]:level:(off text steps tree)' \
                '(-v --verbose)'{-v,--verbose}'[a line for each request]' '*::' ;;
        logs) _arguments $common '(-q --query)'{-q,--query}'[words]:words:' \
                '(-n --limit)'{-n,--limit}'[how many]:number:' \
                '(-m --model)'{-m,--model}'[model name]:name:' '--db[database]:file:_files' '--json' '*::' ;;
        show) _arguments $common '--db[database]:file:_files' '--json' '1::' '2:session:_aerie_sessions' ;;
        diff) _arguments $common $folders $device $cut '*--with[change NAME=VALUE]:change:_aerie_changes' '--forced[give a server'"'"'s tokens to the local engine]' '--log-only[run no model]' \
            '--threads[CPU threads]:number:' '--db[database]:file:_files' '--json[JSON]' '1::' '2:session:_aerie_sessions' '3:session:_aerie_sessions' ;;
        replay) _arguments $common $model $log $cut '--check[run it again, compare]' '--verbose[with its turns]' '--plain[lines]' '--tui[full screen]' \
          '--script[lines from a file]:file:_files' '--theme[colours]:theme:(auto dark light)' '--no-mouse[no clicks]' \
            '*--with[change NAME=VALUE]:change:_aerie_changes' '--forced[commit the recorded tokens]' '--goto[pause after a step]:turn.step:' '--threads[CPU threads]:number:' \
                '1::' '2:session:_aerie_sessions' ;;
        parity) _arguments $common $model $engine $system '*--a[how one side is computed]:change:_aerie_changes' \
                '*--b[how the other is]:change:_aerie_changes' "--control[compute a server's replies twice]" \
                '--api-key-file[key for the server]:file:_files' '*--header[header for the server]:header:' '(-n --limit)'{-n,--limit}'[first prompts]:number:' \
                '--lanes[prompts at once]:n:' '1::' '2:file:_files' ;;
        import) _arguments $common '--seal[key that seals the log]:file:_files' '--db[database]:file:_files' '--json[JSON]' '1::' '*:file:_files' ;;
        export) _arguments $common '--format[format]:format:(jsonl md)' \
                '(-o --output)'{-o,--output}'[new file]:file:_files' '--db[database]:file:_files' \
                '1::' '2:session:_aerie_sessions' ;;
        pack) _arguments $common $model $log '--plan[page tables of a step as JSON]:address:' \
                '--issue[a bug report]:engine:(sglang vllm llama.cpp)' '--threads[CPU threads]:number:' \
                '--steps[draft trees of A..B only]:range:' '--with-text[keep the text]' \
                '--no-ids[leave token ids out]' '(-o --output)'{-o,--output}'[new file]:file:_files' \
                '1::' '2:session:_aerie_sessions' ;;
        db) _arguments $common '--older-than[days]:days:' '--keep[sessions to keep]:n:' '--to-size[MB to leave]:MB:' '--dry-run[only say what]' '--head[a head that was noted]:head:' '--seal[key of the log]:file:_files' '--db[database]:file:_files' '--json' \
                '1::' '2:action:(path check repair backup sql prune vacuum pin unpin)' '3:file:_files' ;;
        tokenize) _arguments $common '(-m --model)'{-m,--model}'[folder]:folder:_files -/' \
                '--special[match special tokens]' '--jsonl[JSON lines]' '1::' '2:file:_files' ;;
        golden) _arguments $common '--draft[draft folder, or ngram]:folder:{compadd ngram; _files -/}' '--json' \
                '--eagle-capture[boundaries the head reads]:list:' '--threads[CPU threads]:number:' \
                '--device[device]:device:(auto cpu cuda)' '--precision[precision on CUDA]:precision:(bf16 f32)' '--kv[keys and values]:type:(auto fp8)' '1::' '2:folder:_files -/' ;;
        bench) _arguments $common $model $cut '--threads[CPU threads]:number:' '--short[fewer lines]' \
                '--cublas[the cuBLASLt to measure against]:file:_files' \
                '--synthetic[a model with made-up weights]:model:(gpt-oss-20b gpt-oss-120b gemma-3-270m gemma-3-1b gemma-3-4b gemma-3-27b gemma-4-E4B small-moe-32 small-moe-128)' '1::' '*:name:' ;;
        bugs) _arguments $common $folders $json '--try[run its smallest input]:bug:' ;;
        doctor) _arguments $common $model $log $server '*::' ;;
        help) _arguments $common '1::' '2:command:{_describe command commands}' ;;
    esac
}

_aerie "$@"
