# fish completion for aerie
set -l commands chat run serve logs show replay diff parity export import pack db tokenize golden bench bugs doctor help

function __aerie_sessions
    echo last
    aerie logs -n 50 --json 2>/dev/null | sed -n 's/^{"id":"[0-9A-Z]*","number":\([1-9][0-9]*\),.*/\1/p'
end

function __aerie_in
    set -l words (commandline -opc)
    for c in chat run serve logs show replay diff parity export import pack db tokenize golden bench bugs doctor help
        if contains -- $c $words
            contains -- $c $argv
            return
        end
    end
    contains -- none $argv
end

complete -c aerie -f
complete -c aerie -n '__aerie_in none' -a chat -d 'talk with the model'
complete -c aerie -n '__aerie_in none' -a run -d 'answer one prompt'
complete -c aerie -n '__aerie_in none' -a serve -d 'serve the model to OpenAI clients'
complete -c aerie -n '__aerie_in none' -a logs -d 'list saved sessions'
complete -c aerie -n '__aerie_in none' -a show -d 'print a session, a turn or a step'
complete -c aerie -n '__aerie_in none' -a replay -d 'play a session, or run it again'
complete -c aerie -n '__aerie_in none' -a diff -d 'first difference of two runs'
complete -c aerie -n '__aerie_in none' -a import -d 'take replies of servers into the log'
complete -c aerie -n '__aerie_in none' -a parity -d 'compute prompts twice, compare ids'
complete -c aerie -n '__aerie_in none' -a export -d 'write a session to a file'
complete -c aerie -n '__aerie_in none' -a pack -d 'write a session to one file for others'
complete -c aerie -n '__aerie_in none' -a db -d 'care for the database'
complete -c aerie -n '__aerie_in none' -a tokenize -d 'print token ids'
complete -c aerie -n '__aerie_in none' -a golden -d 'compare with reference tensors'
complete -c aerie -n '__aerie_in none' -a bench -d 'measure speed'
complete -c aerie -n '__aerie_in none' -a bugs -d 'historical faults'
complete -c aerie -n '__aerie_in none' -a doctor -d 'what was found here'
complete -c aerie -n '__aerie_in none' -a help -d 'flags and settings'
complete -c aerie -n '__aerie_in help' -a "$commands"
complete -c aerie -n '__aerie_in show replay diff export pack' -a '(__aerie_sessions)'
complete -c aerie -n '__aerie_in show replay diff export pack' -k -xa '(__fish_complete_suffix .aerie)'
complete -c aerie -n '__aerie_in db' -a 'path check backup sql prune'
complete -c aerie -n '__aerie_in tokenize db golden parity import' -F

complete -c aerie -l ascii -d 'no line or block characters'
complete -c aerie -l color -x -a 'auto always never' -d 'colours'
complete -c aerie -l no-sandbox -d 'may write anywhere, run programs'
complete -c aerie -n 'not __aerie_in logs' -s q -l quiet -d 'no notices'
complete -c aerie -s h -l help -d 'help'
complete -c aerie -s V -l version -d 'version'

set -l model '__aerie_in none chat run serve replay pack diff parity bench bugs doctor'
complete -c aerie -n "$model; or __aerie_in tokenize" -s m -l model -x -a '(__fish_complete_directories)' -d 'checkpoint folder'
complete -c aerie -n "$model; or __aerie_in golden" -l draft -x -a 'ngram (__fish_complete_directories)' -d 'draft folder, or ngram'
complete -c aerie -n "$model; or __aerie_in golden" -l device -x -a 'auto cpu cuda' -d 'where to compute'
complete -c aerie -n "$model; or __aerie_in golden" -l precision -x -a 'bf16 f32' -d 'activations and KV cells on CUDA'
complete -c aerie -n '__aerie_in none chat run serve replay diff parity bench' -l weights -x -a 'stored fp8' -d 'matrices cut to 8 bits'
complete -c aerie -n '__aerie_in none chat run serve replay diff parity bench' -l draft-weights -x -a 'stored fp8' -d 'those of the draft'
complete -c aerie -n '__aerie_in none chat run serve replay diff parity bench' -l load -x -a 'auto map copy' -d 'CPU: weights in mapped files, or a copy'
complete -c aerie -n 'not __aerie_in tokenize help' -l db -r -F -d 'session database'
complete -c aerie -n 'not __aerie_in tokenize help export serve' -l json -d 'JSON for machines'

set -l talk '__aerie_in none chat run'
set -l changes 'spec=on spec=off draft.steps= draft.topk= draft.nodes= draft.shape= temperature= seed= model= draft= eagle_capture= device= precision= weights= draft_weights= threads= raw= context= page_size= full_pages= swa_pages= bug.'
set -l engine '__aerie_in none chat run serve parity'
complete -c aerie -n $engine -l require-draft -d 'stop when the draft does not fit'
complete -c aerie -n "$engine; or __aerie_in golden" -l eagle-capture -x -d 'boundaries the head reads'
complete -c aerie -n "$engine; or __aerie_in replay pack diff golden bench" -l threads -x -d 'CPU threads'
complete -c aerie -n $engine -l raw -d 'no chat format'
complete -c aerie -n $engine -s p -l param -x -a 'temperature= top_k= top_p= min_p= seed= max_tokens= spec= draft.steps= draft.topk= draft.nodes= draft.shape= chunk= forget= check= ring= gauge.ms= graph= verbose= think=' -d 'set a setting'
complete -c aerie -n '__aerie_in none chat run parity' -s s -l system -x -d 'system prompt'
complete -c aerie -n $engine -l seed -x -d 'seed'
complete -c aerie -n $engine -l check -x -a 'off on strict' -d 'how much is checked'
complete -c aerie -n $engine -l bug -x -d 'switch a historical fault on'
complete -c aerie -n "$talk; or __aerie_in serve" -l no-spec -d 'do not draft'
complete -c aerie -n "$talk; or __aerie_in doctor" -l remote -x -d 'chat with a server'
complete -c aerie -n "$talk; or __aerie_in doctor parity serve" -l api-key-file -r -F -d 'key for the server'
complete -c aerie -n "$talk; or __aerie_in doctor" -l kv-events -x -d 'KV events of the server'
complete -c aerie -n $talk -l break -x -d 'pause after steps where this holds'
complete -c aerie -n "$talk; or __aerie_in doctor parity" -l header -x -d 'header for the server'
complete -c aerie -n $engine -l no-graph -d 'CUDA: replay no recorded cycle'
complete -c aerie -n $engine -l context -x -d 'longest context'
complete -c aerie -n $engine -l page-size -x -a '1 2 4 8 16 32 64' -d 'tokens a page'
complete -c aerie -n $engine -l full-pages -x -d 'pages of the full pool'
complete -c aerie -n $engine -l swa-pages -x -d 'pages of the sliding-window pool'
complete -c aerie -n $talk -s c -l continue -d 'take up the latest session'
complete -c aerie -n $talk -l session -x -a '(__aerie_sessions)' -d 'take up a session'
complete -c aerie -n $talk -l fork -d 'take up a copy'
complete -c aerie -n "$talk; or __aerie_in serve" -l log-level -x -a 'off text steps tree full' -d 'how much is saved'
complete -c aerie -n "$talk; or __aerie_in serve" -s n -l no-log -d 'save nothing'
complete -c aerie -n $talk -l sanitize -x -a 'auto always never' -d 'escape control characters'
complete -c aerie -n "$talk; or __aerie_in replay serve" -s v -l verbose -d 'statistics'
complete -c aerie -n '__aerie_in none chat replay' -l plain -d 'lines'
complete -c aerie -n '__aerie_in none chat replay' -l tui -d 'full screen'
complete -c aerie -n '__aerie_in none chat replay' -l theme -x -a 'auto dark light' -d 'colours'
complete -c aerie -n '__aerie_in none chat replay' -l no-mouse -d 'no clicks'
complete -c aerie -n '__aerie_in none chat' -l readonly -d 'save nothing, refuse what writes'
complete -c aerie -n '__aerie_in none chat replay' -l script -r -F -d 'lines from a file'
complete -c aerie -n '__aerie_in serve' -l port -x -d 'port'
complete -c aerie -n '__aerie_in serve' -l host -x -d 'address'
complete -c aerie -n '__aerie_in serve' -l model-name -x -d "model's name for clients"
complete -c aerie -n '__aerie_in run' -l batch -r -F -d 'many prompts'
complete -c aerie -n '__aerie_in run parity serve' -l lanes -x -d 'prompts at once'
complete -c aerie -n '__aerie_in run' -s f -l file -r -F -d 'text behind the prompt'
complete -c aerie -n '__aerie_in parity' -l a -x -a "$changes" -d 'how one side is computed'
complete -c aerie -n '__aerie_in parity' -l control -d "compute a server's replies twice"
complete -c aerie -n '__aerie_in parity' -l b -x -a "$changes" -d 'how the other is'
complete -c aerie -n '__aerie_in logs' -s q -l query -x -d 'words'
complete -c aerie -n '__aerie_in logs parity' -s n -l limit -x -d 'how many'
complete -c aerie -n '__aerie_in logs' -s m -l model -x -d 'model name'
complete -c aerie -n '__aerie_in replay' -l check -d 'run it again, compare'
complete -c aerie -n '__aerie_in replay diff' -l with -x -d 'change NAME=VALUE'
complete -c aerie -n '__aerie_in diff' -l log-only -d 'run no model'
complete -c aerie -n '__aerie_in replay' -l goto -x -d 'run again to this step and pause'
complete -c aerie -n '__aerie_in replay diff' -l forced -d 'give the recorded tokens'
complete -c aerie -n '__aerie_in export' -l format -x -a 'jsonl md' -d 'format'
complete -c aerie -n '__aerie_in pack' -l steps -x -d 'draft trees of A..B only'
complete -c aerie -n '__aerie_in pack' -l plan -x -d 'page tables of step T.S as JSON'
complete -c aerie -n '__aerie_in pack' -l issue -x -a 'sglang vllm llama.cpp' -d 'a bug report'
complete -c aerie -n '__aerie_in pack' -l with-text -d 'keep the text'
complete -c aerie -n '__aerie_in pack' -l no-ids -d 'leave token ids out'
complete -c aerie -n '__aerie_in export pack' -s o -l output -r -F -d 'new file'
complete -c aerie -n '__aerie_in db' -l older-than -x -d 'days'
complete -c aerie -n '__aerie_in bench' -l synthetic -x -a 'gpt-oss-20b gpt-oss-120b gemma-3-270m gemma-3-1b gemma-3-4b gemma-3-27b gemma-4-E4B' -d 'a model with made-up weights'
complete -c aerie -n '__aerie_in bench' -l cublas -r -F -d 'the cuBLASLt to measure against'
complete -c aerie -n '__aerie_in bench' -l short -d 'fewer lines'
complete -c aerie -n '__aerie_in bugs' -l try -x -d 'run its smallest input'
complete -c aerie -n '__aerie_in tokenize' -l special -d 'match special tokens'
complete -c aerie -n '__aerie_in tokenize' -l jsonl -d 'JSON lines'
