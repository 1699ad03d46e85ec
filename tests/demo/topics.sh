#!/bin/bash
# The examples of /help: what commands print, for each topic of repl/share/topics.txt. The text is repl/share/examples.txt,
# which the program is built with. Lines that hold times, threads or free memory are left out.
here=$(cd "$(dirname "$0")" && pwd); . "$here/story.bash"
cd "$box" || exit 2
cp "$here/foreign_case.json" verify.json
say() { printf '%s\n' "$@"; }
# An unknown command /=TOPIC prints a line of its own, which splits a chat's output into files, one a topic.
parts() { awk -v to="$box/part." '/^aerie: there is no command \/=/ { sub(/;.*/, ""); out = to substr($6, 3); next } out { print >out }'; }
topic() { printf '\n= %s\n' "$1"; }
# TOPIC COMMAND SED: what a command of the chat printed, the lines that sed keeps
of_chat() { topic "$1"; echo "> $2"; sed -n "$3" <"part.$1"; }
# SED COMMAND...: lines of what a subcommand prints
of() { local keep=$1; shift; shown "$@" | sed -n "1{p;d};$keep"; }

fox='Tell me a story about a fox.' owl='Tell me a story about an owl.'
say "$fox" /=swa '/map 20' /=kv /pool /=memory /memory /=drafts '/tree 1.2' /=acceptance /accept /=layers '/layers 1.2' \
    /=panes '/pages swa' /=time '/at 1.2' /why '/at live' /=status /stats /=words '/why 1.2' /=tokens '/tokens 20 22' \
    /=views '/sql select turn, step, text, rival_text from v_token where logp - rival_logp < 0.1' /=log '/sql select count(*) as steps from v_step' \
    /=faults /bug /=settings '/set draft.topk' /=input /pa /=edit '/n 2 Tell me a joke' /=copy /copy /=capture /calibrate \
    /=sessions '/title window tests' /sessions /=more 'And one about an owl.' /=reuse /stats \
    /=context '/set forget' /=end | chat | parts
say "$fox" '/draft ngram' "$fox" /=switch '/accept drafter' /=end | chat | parts
say '/break accept<drafted' "$owl" /=stepping /where /=what-if '/what-if draft.topk=4' /=conditions '/break node.depth>=3 && !node.accepted' /breaks \
    /=back /rstep /=end | chat -n | parts
grep -q 'step 1' part.back || { echo "!! no step of the owl's story rejects a draft: nothing paused"; exit 1; }
: >address; "$aerie" serve --port 0 -n >address 2>&1 & server=$!
trap 'kill $server; rm -rf "$box"' EXIT
for _ in {1..400}; do url=$(grep -o 'http://[0-9.:]*' address) && break; sleep 0.02; done
here() { sed "s|$url|http://127.0.0.1:8080|g"; }

{ of_chat swa '/map 20' 1,4p
  of_chat kv /pool 1,4p
  of_chat reuse /stats '/^prompt/,/latest/p'
  of_chat memory /memory '/^[wdK]/p'
  topic fit; of '/^[Kdw]/p' fit --context 4096
  topic pull; (export HF_HUB_OFFLINE=1; of 1,3p pull openai/gpt-oss-20b)
  topic model; cp -rs "$here/../../models/nestling/target" "$here/../../models/nestling/draft" .; of '/^ok   model/,$p' doctor -m target
  of_chat drafts '/tree 1.2' p
  of_chat acceptance /accept 1,5p
  of_chat layers '/layers 1.2' 1,6p
  of_chat panes '/pages swa' 1,5p
  of_chat time '/at 1.2' 1,4p
  of_chat status /stats '/^status/{s/ [0-9]* t.s ·//;p}'
  of_chat words '/why 1.2' 1,5p
  of_chat tokens '/tokens 20 22' p
  of_chat views '/sql select turn, step, text, rival_text from v_token where logp - rival_logp < 0.1' p
  of_chat log '/sql select count(*) as steps from v_step' p
  of_chat faults /bug 1,3p
  of_chat settings '/set draft.topk' p
  topic chat; printf '> %s\n' '/system Answer briefly.' 'What is a page table?'; say '/system Answer briefly.' 'What is a page table?' | chat -n
  of_chat input /pa p
  of_chat edit '/n 2 Tell me a joke' p
  of_chat copy /copy p | cut -c1-79
  of_chat capture /calibrate p
  of_chat sessions /sessions 's/ 20[0-9-]* [0-9:]* / DATE       TIME /;p'
  of_chat context '/set forget' p
  of_chat stepping /where p
  of_chat switch '/accept drafter' 1,4p
  of_chat what-if '/what-if draft.topk=4' '/^microseconds/d;s/; [0-9]* ms in all//;p'
  of_chat conditions '/breaks' p
  of_chat back /rstep p
  topic replay; of p replay 1 --check
  topic compare; of p diff 1 --with page_size=4
  topic pack; of 's/seal.*/sealed/;p' pack 1 --issue sglang -o session.aerie; grep -i -A2 '^| depth' session-sglang.md
  topic check; of 1,8p check verify.json
  topic triage; of '/^measured/p;/^verdict/p' triage 1
  topic dump; mkdir dumps; of p dump dumps
  topic golden; of '/^greedy/p;$p' golden "$here/../golden/gemma3-a" | sed 's|/.*/golden/||'
  topic doctor; of '/^ok   \(aerie\|terminal\|draft\)/p' doctor | sed 's|/.*/models|models|'
  topic kl; of '/ replies,/p;/^k3/p;/^zero/p' kl local -n 2
  topic parity; say "$fox" 'Count to ten.' >prompts.txt; of '/pass\(es\)\? \|a second/d;p' parity prompts.txt
  topic run; of p run 'What is a page table?'
  topic exit; of p show 99; echo '$ echo $?'; "$aerie" show 99 2>/dev/null; echo $?
  topic files; of p db path | sed "s|$box|/home/me/.local/share|"
  topic safety; printf 'What is a \033[31mslot?\n' | chat >slot; of 's/20[0-9-]* [0-9:]* /DATE       TIME /;p' logs -n 1
  topic import; say '{"messages":[{"role":"user","content":"Hello"}],"choices":[{"message":{"role":"assistant","content":"Hi."}}]}' >one.jsonl; of p import one.jsonl
  topic serve; ask='{"prompt":"a page table"}'; echo "\$ curl http://127.0.0.1:8080/tokenize --json '$ask'"; curl -s "$url/tokenize" --json "$ask"; echo
  topic remote; echo "\$ aerie --remote http://127.0.0.1:8080"; say 'Hello' /stats | "$aerie" --plain -q -n --remote "$url" 2>&1 | sed -n '1p;/^MAL/p;/^model/p' | here
  topic servers; say "$fox" /accept | "$aerie" --plain -q -n --remote "$url" 2>&1 | sed 1d
  topic probe; of 's/, [0-9]* s$//;p' probe "$url" -n 1 | here
} 2>&1 | sed 1d | told ../../repl/share/examples
