#!/bin/bash
# Models by name, in a cache as the libraries of the Hugging Face hub fill it: where the cache lies, revisions, links into
# blobs, quantizations, snapshots that are not complete, and what is said where there is no such model.
. "$(dirname "$0")/kit.sh"
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_HOME XDG_CACHE_HOME
server=''
clean() { [ -z "$server" ] || kill "$server"; }
one=0123456789abcdef0123456789abcdef01234567 two=89abcdef0123456789abcdef0123456789abcdef
corpus=tests/fuzz/corpus/tokenizer # GGUF files with a tokenizer only

# put CACHE ORG/NAME COMMIT FILE AS: the file as a blob, and a link to it in the snapshot
put() {
    local model=$1/models--${2/\//--} blob up='' i
    blob=$(sha256sum "$4" | cut -c1-64); mkdir -p "$model/blobs" "$model/refs" "$(dirname "$model/snapshots/$3/$5")"
    cp "$4" "$model/blobs/$blob"
    for ((i = $(tr -dc / <<<"$5" | wc -c); i > 0; i--)); do up+=../; done
    ln -sf "$up../../blobs/$blob" "$model/snapshots/$3/$5"
}
nest() { # CACHE ORG/NAME COMMIT: the bundled model
    local f; for f in models/nestling/target/*; do put "$1" "$2" "$3" "$f" "${f##*/}"; done
}
ref() { # CACHE ORG/NAME REVISION COMMIT
    local refs=$1/models--${2/\//--}/refs; mkdir -p "$(dirname "$refs/$3")"; printf %s "$4" >"$refs/$3"
}
ids() { run tokenize -m "$1" "$T/text"; } # of the model's tokenizer
is() { [ "$rc" = 0 ] && [ "$(cat "$T/out")" = "$1" ]; }
says() { # the message is one line that has all of these
    local x; [ "$rc" = 3 ] && [ "$(wc -l <"$T/err")" = 1 ] || return 1
    for x; do grep -qF -- "$x" "$T/err" || return 1; done
}
echo 'ab aba' >"$T/text"
ids models/nestling/target; nestling=$(cat "$T/out")
ids $corpus/gguf_gemma3; gemma=$(cat "$T/out")
ids $corpus/gguf_smollm; smollm=$(cat "$T/out")
[ -n "$nestling" ] && [ "$gemma" != "$smollm" ] && [ "$gemma" != "$nestling" ]; result "three tokenizers" $?

# ---- where the cache lies
hub=.cache/huggingface/hub
nest "$T/$hub" Acme/Nest $one; ref "$T/$hub" Acme/Nest main $one
ids Acme/Nest; is "$nestling"; result "a name finds the model in ~/$hub" $?
ln -s "$T/$hub" "$T/elsewhere"; mkdir -p "$T/home" "$T/xdg/huggingface" "$T/empty"; ln -s "$T/$hub" "$T/home/hub"; ln -s "$T/$hub" "$T/xdg/huggingface/hub"
mv "$T/.cache" "$T/cache"; for f in elsewhere home/hub xdg/huggingface/hub; do ln -sfn "$T/cache/huggingface/hub" "$T/$f"; done
XDG_CACHE_HOME=$T/xdg ids Acme/Nest; is "$nestling"; result "XDG_CACHE_HOME" $?
tilde='~'; XDG_CACHE_HOME=$T/empty HF_HOME=$tilde/home ids Acme/Nest; is "$nestling"; result "HF_HOME, with a ~" $?
HF_HOME=$T/empty HUGGINGFACE_HUB_CACHE='$HOME/elsewhere' ids Acme/Nest; is "$nestling"; result "HUGGINGFACE_HUB_CACHE, with a variable" $?
HUGGINGFACE_HUB_CACHE=$T/empty HF_HUB_CACHE='${HOME}/elsewhere' ids Acme/Nest; is "$nestling"; result "HF_HUB_CACHE comes first" $?
export HF_HUB_CACHE=$T/elsewhere
mkdir -p "$T/Acme" && cp $corpus/gguf_smollm "$T/Acme/Nest"
AERIE=$(realpath "$AERIE"); (cd "$T" && ids Acme/Nest && is "$smollm"); result "a path that exists wins" $?

# ---- revisions
nest "$HF_HUB_CACHE" Acme/Two $two; nest "$HF_HUB_CACHE" Acme/Two $one; ref "$HF_HUB_CACHE" Acme/Two pr/7 $two
put "$HF_HUB_CACHE" Acme/Two $one $corpus/gguf_smollm x.gguf
ids Acme/Two@pr/7; is "$nestling"; result "a revision with a slash" $?
ids Acme/Two@$one:x.gguf; is "$smollm"; result "a commit, and a file" $?
ids Acme/Two@pr/7:x.gguf; says Acme/Two@pr/7:x.gguf "snapshots/$two" 'x.gguf is missing'; result "a file that this revision does not have" $?
ids Acme/Two; says 'Acme/Two: the cache knows no revision main: there is no' refs/main; result "two snapshots and no branch main" $?
ids Acme/Two@v2; says 'no revision v2' refs/v2; result "a revision that was not fetched" $?
ref "$HF_HUB_CACHE" Acme/Two main ffff456789abcdef0123456789abcdef01234567
ids Acme/Two; says 'commit ffff456789abcdef0123456789abcdef01234567, which was not fetched'; result "a branch whose commit was not fetched" $?
ref "$HF_HUB_CACHE" Acme/Two main '../../../x'
ids Acme/Two; says refs/main 'expected a commit of 40 hexadecimal digits'; result "a branch that is no commit" $?
rm "$HF_HUB_CACHE/models--Acme--Nest/refs/main"
ids Acme/Nest; is "$nestling"; result "one snapshot and no branch" $?

# ---- quantizations
gguf() { put "$HF_HUB_CACHE" Acme/Nest-GGUF $one "$1" "$2"; }
ref "$HF_HUB_CACHE" Acme/Nest-GGUF main $one
gguf $corpus/gguf_gemma3 nest-Q2_K.gguf; gguf $corpus/gguf_gemma3 nest-Q8_0.gguf; gguf models/nestling/target/config.json config.json
gguf $corpus/gguf_gemma4 mmproj-nest-Q4_K_M.gguf
ids Acme/Nest-GGUF:q2_k; is "$gemma"; result "a quantization, in any case" $?
gguf $corpus/gguf_smollm nest-Q8_0.gguf; ids Acme/Nest-GGUF; is "$smollm"; result "Q8_0, where there is no Q4_K_M" $?
gguf $corpus/gguf_gemma3 Q4_K_M/nest-Q4_K_M.gguf; ids Acme/Nest-GGUF; is "$gemma"; result "Q4_K_M first, in a folder" $?
ids Acme/Nest-GGUF:Q8_0; is "$smollm"; result "the quantization that is asked for" $?
ids Acme/Nest-GGUF:Q4_K_M/nest-Q4_K_M.gguf; is "$gemma"; result "a file in a folder" $?
ids Acme/Nest-GGUF:Q4; says 'has no Q4; it has Q4_K_M/nest-Q4_K_M.gguf, nest-Q2_K.gguf, nest-Q8_0.gguf'; result "a quantization that is not there: which are" $?

# ---- not complete, or not there
model=$HF_HUB_CACHE/models--Acme--Nest
rm "$(readlink -f "$model/snapshots/$one/model.safetensors")"
ids Acme/Nest; says Acme/Nest: "snapshots/$one is not complete: model.safetensors is a link to a file that is not there"; result "a link into a blob that is gone" $?
rm "$model/snapshots/$one/model.safetensors"
ids Acme/Nest; says 'not complete: model.safetensors is missing'; result "no weights" $?
echo '{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}' >"$T/index"
put "$HF_HUB_CACHE" Acme/Nest $one "$T/index" model.safetensors.index.json
put "$HF_HUB_CACHE" Acme/Nest $one "$T/text" model-00001-of-00002.safetensors
ids Acme/Nest; says 'not complete: model-00002-of-00002.safetensors is missing'; result "one file of several" $?
rm "$model/snapshots/$one/config.json"
ids Acme/Nest; says 'not complete: config.json is missing'; result "no config" $?
ids Acme/Other; says 'Acme/Other: there is no such file or folder, and' 'has no models--Acme--Other'; result "a model that is not in the cache: where was looked" $?
says 'aerie pull Acme/Other fetches it'; result "and what fetches it" $?
HF_HUB_OFFLINE=1 run pull Acme/Other; [ "$rc" = 2 ] && grep -q 'nothing is fetched' "$T/err"; result "offline, pull fetches nothing" $?
HF_ENDPOINT=http://127.0.0.1:9 run pull Acme/Nest; says 'cannot reach http://127.0.0.1:9'; result "a hub that is not there" $?
ids acme/nest; says 'has no models--acme--nest, only models--Acme--Nest'; result "a name with other capitals" $?
for name in ../Nest Acme/.. Acme/Nest/x /Acme/Nest Acme/Nest@ Acme/Nest: 'Acme/Ne--st' 'Acme/Nest:../x.gguf' Acme/Nest@../x; do
    ids "$name"; says "cannot open $name"; result "$name is a path" $?
done
run run -n -m Acme/Other hi; says 'Acme/Other: there is no'; result "the same for a chat" $?
run run -n --draft Acme/Other hi; says 'Acme/Other: there is no'; result "a draft by name" $?

# ---- a draft finds its model, and a model its draft
head() { local f; for f in models/nestling/draft/*; do put "$HF_HUB_CACHE" "$1" $one "$f" "${f##*/}"; done; ref "$HF_HUB_CACHE" "$1" main $one; }
card() { printf -- '---\nlicense: mit\nbase_model:\n  - "%s"\ntags: [a]\n---\nbase_model: Acme/Other\n' "$2" >"$T/card"; put "$HF_HUB_CACHE" "$1" $one "$T/card" README.md; }
fits() { run fit "$@"; [ "$rc" = 0 ]; }
drafted() { fits "$1" && grep -q "^draft's weights" "$T/out" && grep -qF -- "$2" "$T/out"; }
nest "$HF_HUB_CACHE" Pair/Nest-8m-it $one; ref "$HF_HUB_CACHE" Pair/Nest-8m-it main $one; : >"$T/out"
fits Pair/Nest-8m-it && ! grep -q "draft's" "$T/out"; result "no draft is there" $?
head Pair/EAGLE3-nest-8m-bf16
fits Pair/Nest-8m-it && ! grep -q "draft's" "$T/out"; result "a draft that is called like another model is not used" $?
head Quux/EAGLE3-nest-8m-it-bf16
drafted Pair/Nest-8m-it 'draft: Quux/EAGLE3-nest-8m-it-bf16, found in the hub'; result "a draft of the cache that is called like the model" $?
drafted Quux/EAGLE3-nest-8m-it-bf16 'it is a draft of Pair/Nest-8m-it'; result "this draft alone finds its model" $?
fits Pair/Nest-8m-it --draft none && ! grep -q "draft's" "$T/out"; result "--draft none" $?
head Zed/wolf; card Zed/wolf Pair/nest-8m-IT
drafted Pair/Nest-8m-it 'draft: Zed/wolf, found'; result "a draft whose model card names the model comes first" $?
for f in config.json model.safetensors; do put "$HF_HUB_CACHE" Aaa/nest-8m-it-eagle3 $one "tests/golden/eagle3-gptoss-a/$f" $f; done
card Aaa/nest-8m-it-eagle3 Pair/Nest-8m-it
run doctor -m Pair/Nest-8m-it
grep -q 'draft .*models--Zed--wolf.*MiB' "$T/out" && grep -q 'draft .*: names it' "$T/out" &&
    grep -q 'not used: .*Aaa--nest-8m-it-eagle3.* does not fit the target: vocab_size is 512, expected 4096' "$T/out" &&
    grep -q 'not used: .*Quux--.*; --draft uses it' "$T/out"; result "doctor names the drafts, and why one does not fit" $?
head Quux/lost; card Quux/lost Acme/Other
fits Quux/lost; says 'is a draft (LlamaForCausalLMEagle3) for Acme/Other, which is neither beside it nor in' 'aerie pull Acme/Other fetches it' 'expected -m MODEL --draft DRAFT'; result "a draft whose model is not there names it" $?
rm "$HF_HUB_CACHE/models--Quux--lost/snapshots/$one/README.md"
fits Quux/lost; says 'is a draft (LlamaForCausalLMEagle3) that does not say for which model'; result "a draft that names no model" $?
pair=$T/models; mkdir -p "$pair/nest" "$pair/apart/x"; cp -r models/nestling/target "$pair/nest/"; cp -r models/nestling/draft "$pair/nest/"
drafted "$pair/nest" 'found beside the model'; result "a folder with target/ and draft/" $?
drafted "$pair/nest/target" "$pair/nest/draft"; result "target/ with draft/ beside it" $?
drafted "$pair/nest/draft" "it is a draft of $pair/nest/target"; result "draft/ with target/ beside it" $?
cp -r models/nestling/target "$pair/apart/nest-2"; cp -r models/nestling/draft "$pair/apart/x/wolf"
sed -i "s|^{|{ \"speculators_config\": {\"verifier\": {\"name_or_path\": \"$pair/apart/nest-2\"}}, \"norm_before_residual\": false,|" "$pair/apart/x/wolf/config.json"
drafted "$pair/apart/x/wolf" "it is a draft of $pair/apart/nest-2"; result "a verifier that is a path" $?
fits "$pair/apart/nest-2" && ! grep -q "draft's" "$T/out"; result "which does not find the draft elsewhere" $?
mv "$pair/apart/x/wolf" "$pair/apart/nest-2/wolf"
drafted "$pair/apart/nest-2" "found in the model's folder"; result "a draft in the model's folder, whatever its name is" $?
run run -n -m "$pair/nest/draft" hi
[ "$rc" = 0 ] && [ -s "$T/out" ] && [ "$(cat "$T/err")" = "aerie: draft: $pair/nest/draft, it is a draft of $pair/nest/target (--draft none: without)" ]; result "a chat of a draft: one line says what was loaded" $?

# ---- what the model is called
nest "$HF_HUB_CACHE" Acme/Nest $one; rm "$model/snapshots/$one/model.safetensors.index.json"
"$AERIE" serve --port 0 -n -m Acme/Nest >"$T/log" 2>"$T/err" & server=$!
until_ok grep -q /v1 "$T/log"
grep -q '^Acme/Nest at http' "$T/log"; result "serve calls it by its name" $?
plan
