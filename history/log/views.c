/* views.c - the views of the database: rows instead of blobs, for sqlite3, Datasette and /sql.
 *
 * Views read the tables of schema.c and hold no data, so no seal covers them; their text is
 * compared like that of the tables. They use functions of SQLite alone (3.38 or later), because
 * other programs open the database without functions of aerie.
 *
 * A blob becomes rows with json_each() over an array of as many zeros as the blob has items: its
 * key counts them. Unlike a recursive query the array is made for one row of the outer table, so a
 * condition on session and turn keeps its index.
 */
#include "history/columns.h"

/* The hex digit at place i (from 1) of text h, times 16 to the power of bits / 4. */
#define DIGIT(h, i, bits) "(instr('123456789ABCDEF',substr(" h "," #i ",1))<<" #bits ")"

/* The unsigned 32-bit integer of 8 hex digits: hex() of 4 bytes, little-endian. */
#define U32(h)                                                                                     \
    "(" DIGIT(h, 7, 28) "|" DIGIT(h, 8, 24) "|" DIGIT(h, 5, 20) "|" DIGIT(h, 6, 16) "|"            \
    DIGIT(h, 3, 12) "|" DIGIT(h, 4, 8) "|" DIGIT(h, 1, 4) "|" DIGIT(h, 2, 0) ")"

/* The same bits as a signed integer. */
#define I32(w) "(CASE WHEN " w ">2147483647 THEN " w "-4294967296 ELSE " w " END)"

/* 2 to the power of -s, exactly; 0 <= s <= 186. */
#define HALVED(x, s)                                                                               \
    "(" x "/(1<<min(" s ",62))/(1<<min(max(" s "-62,0),62))/(1<<max(" s "-124,0)))"

/* The same bits as an IEEE 754 binary32 below 2^23 in size; NULL for NaN. Exact: a 24-bit integer
 * over a power of two. */
#define F32(w)                                                                                     \
    "(CASE WHEN (" w ">>23&255)=255 THEN NULL WHEN (" w ">>23&255)=0"                              \
    " THEN (1-2*(" w ">>31))*" HALVED("((" w "&8388607)*1.0)", "149")                              \
    " ELSE (1-2*(" w ">>31))*" HALVED("((" w "&8388607|8388608)*1.0)", "(150-(" w ">>23&255))")    \
    " END)"

/* n rows, with the column key = 0, 1, ... n - 1. */
#define COUNT_UP(n) "json_each('['||rtrim(replace(hex(zeroblob(" n ")),'00','0,'),',')||']')"

/* Byte o (from 0) of node i of a packed tree (engine/cache/tree.h): 2 bytes, then 18 a node. */
#define NODE_BYTES(i, o, n) "substr(x.nodes,3+18*(" i ")+" #o "," #n ")"
#define BYTE(b) "(instr('123456789ABCDEF',substr(hex(" b "),1,1))<<4"                              \
                "|instr('123456789ABCDEF',substr(hex(" b "),2,1)))"

/* The vocabulary of turn t: z.id of the table tokenizer, NULL where the log knows none. */
#define VOCABULARY                                                                                 \
    " LEFT JOIN run u ON u.id=t.run_id LEFT JOIN model m ON m.id=u.target_id"                      \
    " LEFT JOIN tokenizer z ON z.sha=m.tokenizer_sha"
#define TEXT_OF(id) "(SELECT k.text FROM token k WHERE k.tokenizer=z AND k.id=" id ")"

/* Bytes o .. o + 3 (from 0) of token i's facts, in hex; NULL: not stored (hex(NULL) is ''). */
#define FACT(o)                                                                                    \
    "CASE WHEN s.facts IS NULL THEN NULL ELSE hex(substr(s.facts,12*i.key+1+" #o ",4)) END"

/* A block of page events (engine/cache/page_event.h): 21 bytes, then 20 a run of events. */
#define EVENTS(o) U32("hex(substr(x.events,1+" #o ",4))")
#define RUN "substr(x.events,22+20*i.key,20)"
/* As many rows as run i has events, with the columns key = 0, 1, ... and value = the run in hex:
 * the block, which may be long, is read once a run, not once an event. */
#define RUN_EVENTS                                                                                 \
    "json_each('['||rtrim(replace(hex(zeroblob("                                                   \
    U32("hex(substr(x.events,38+20*i.key,4))") ")),'00','\"'||hex(" RUN ")||'\",'),',')||']')"
#define RUN_BYTE(o) "(" DIGIT("j.value", (1+2*o), 4) "|" DIGIT("j.value", (2+2*o), 0) ")"
#define RUN_U32(o) U32("substr(j.value,1+2*" #o ",8)")

/* How v_step shows a column of a step (VIEW in history/columns.h). */
#define STEP_VIEW(name, type, sql, member, keep, part, view) VIEW_##view(name)
#define VIEW_NONE(name)
#define VIEW_PLAIN(name) ", s." #name
#define VIEW_POSITION(name) ", s." #name " AS position"
#define VIEW_TOKEN(name) ", nullif(s." #name ",-1) AS " #name
/* not known of a piece of a stream */
#define VIEW_WHOLE(name) ", CASE s.source WHEN 'piece' THEN NULL ELSE s." #name " END AS " #name
#define VIEW_ACCEPTED(name) VIEW_WHOLE(name) ", length(s.tokens)/4 AS new_tokens"
/* of steps computed here */
#define VIEW_HERE(name) ", iif(s.source IS NULL,s." #name ",NULL) AS " #name
#define VIEW_DIGEST(name) ", iif(s.source IS NULL,printf('%016x',s." #name "),NULL) AS " #name
#define VIEW_FUSED(name)                                                                           \
    ", s." #name LENGTH(1, length) LENGTH(5, committed)                                            \
    LENGTH(9, draft_length) LENGTH(13, window_lo)
#define LENGTH(o, name) ", CASE WHEN x.events IS NULL THEN NULL ELSE " EVENTS(o) " END AS " #name
#define VIEW_SOURCE(name) ", coalesce(s." #name ",'computed') AS " #name
#define VIEW_ARRIVED(name)                                                                         \
    ", s." #name ", s." #name "-(SELECT p." #name " FROM step p WHERE p.turn_id=s.turn_id AND"     \
    " p.n=s.n-1) AS us_since"

const char schema_views[] =
    /* One row a session; server, server_version, url and model of its latest run: what computed it;
     * NULL where it was computed here. */
    "CREATE VIEW v_session AS SELECT e.id AS session, e.number, e.title, e.parent, e.fork_turn,"
    " e.created_ms, e.updated_ms, v.kind AS server, v.version AS server_version, v.url,"
    " coalesce(v.model, m.dir) AS model, b.version AS aerie, nullif(b.device,'') AS device,"
    " (SELECT count(*) FROM turn t WHERE t.session_id=e.id AND t.role='user') AS turns"
    " FROM session e LEFT JOIN run r ON r.id=e.last_run LEFT JOIN server v ON v.id=r.server_id"
    " LEFT JOIN model m ON m.id=r.target_id LEFT JOIN build b ON b.id=r.build_id;"

    /* One row a fact that the server of a run reported of its launch. */
    "CREATE VIEW v_launch AS SELECT r.session_id AS session, r.id AS run, v.kind AS server,"
    " i.key AS name, i.value FROM run r JOIN server v ON v.id=r.server_id"
    " JOIN json_each(v.facts) i;"

    /* One row a turn. change: why the prompt does not begin with all tokens held before (none,
     * first, emptied, system, undo, regen, forget, silent, fork, format), change_turn: of which
     * turn; held: tokens with cells before the turn; same: of them, those that the prompt begins
     * with; limited: why fewer of these were reused (window, evicted, draft, state), gone_from ..
     * gone_to: the positions; NULL: not recorded. Of a server's reply, drafted, accepted, reused
     * are those that it reported. server_prompt .. server_cached: tokens as the server counts them;
     * ms_queue, ms_first: the server's times until the request ran and until its first token;
     * finish: the server's finish reason; us_prefill: the time until the first token arrived here;
     * prompt_ids, reply_ids: 1 if the server sent the ids, 0 if it sent none; NULL: not reported,
     * or computed here. */
    "CREATE VIEW v_turn AS SELECT q.session_id AS session, q.n AS turn, e.number,"
    " coalesce(length(x.tokens)/4, coalesce(q.shared,0)+length(q.tokens)/4) AS prompt_tokens,"
    " iif(v.id IS NULL,coalesce(q.n_reused,0),x.cached) AS reused,"
    " q.change, nullif(q.change_turn,0) AS change_turn, q.held, q.same,"
    " nullif(q.limited,'') AS limited, CASE WHEN q.limited<>'' THEN q.gone_from END AS gone_from,"
    " CASE WHEN q.limited<>'' THEN q.gone_to END AS gone_to, q.regen, r.stop,"
    " length(r.tokens)/4 AS new_tokens, r.n_steps AS steps, "
    "iif(v.id IS NULL,r.n_drafted,x.drafted) AS drafted,"
    " iif(v.id IS NULL,r.n_accepted,x.accepted) AS accepted, r.us_prefill, r.us_decode, "
    "q.text AS message, r.text AS reply,"
    " v.kind AS server, x.prompt AS server_prompt, x.generated AS server_generated,"
    " x.cached AS server_cached, x.verifies AS server_verifies, x.ms_queue, x.ms_first, "
    "x.ms_prompt, x.ms_decode, nullif(x.finish,'') AS finish, x.prompt_ids, x.reply_ids"
    " FROM turn q JOIN session e ON e.id=q.session_id"
    " LEFT JOIN turn r ON r.session_id=q.session_id AND r.n=q.n AND r.role='reply'"
    " LEFT JOIN served x ON x.turn_id=r.id LEFT JOIN run u ON u.id=r.run_id"
    " LEFT JOIN server v ON v.id=u.server_id"
    " WHERE q.role='user';"

    /* One row a setting of a turn: what the reply was made with. */
    "CREATE VIEW v_settings AS SELECT session, turn, substr(line,1,instr(line,'=')-1) AS name,"
    " substr(line,instr(line,'=')+1) AS value"
    " FROM (SELECT t.session_id AS session, t.n AS turn, i.value AS line FROM turn t"
    " JOIN json_each('[\"'||replace(replace(replace(replace(t.sampling,'\\','\\\\'),'\"','\\\"'),"
    "char(9),'\\t'),char(10),'\",\"')||'\"]') i"
    " WHERE t.role='user' AND t.sampling IS NOT NULL)"
    " WHERE instr(line,'=')>0;"

    /* One row a stored token of a prompt. The log stores a prompt from the first token on that the
     * sequence before it (the last prompt and its reply) did not have at that position; or the ids
     * in the reply's row, if the server reported them with the reply. reused: 1 while the cache
     * still held the token. */
    "CREATE VIEW v_prompt AS SELECT session, turn, position, " I32("w") " AS token,"
    " position<reused AS reused, " TEXT_OF(I32("w")) " AS text"
    " FROM (SELECT session, turn, position, reused, z, " U32("h") " AS w"
    " FROM (SELECT t.session_id AS session, t.n AS turn,"
    " iif(x.tokens IS NULL,coalesce(t.shared,0),0)+i.key AS position,"
    " z.id AS z, coalesce(t.n_reused,0) AS reused,"
    " hex(substr(coalesce(x.tokens,t.tokens),4*i.key+1,4)) AS h"
    " FROM turn t" VOCABULARY " LEFT JOIN turn r ON r.session_id=t.session_id AND r.n=t.n AND"
    " r.role='reply' LEFT JOIN served x ON x.turn_id=r.id"
    " JOIN " COUNT_UP("length(coalesce(x.tokens,t.tokens))/4") " i WHERE t.role='user'));"

    /* One row a step. position: index of the first token that the step computed; margin: the best
     * log probability less the second best in the row of the last token; forced: how many of the
     * first tokens were given by hand; fused: 1 when the cycle ran as one graph; the lengths of the
     * context after the step: all tokens, those with cells in the target's pools, in the draft's,
     * and the first position that the window's pages still hold. source: 'computed' here; 'server':
     * a step that a server reported; 'piece': a piece of its stream, of which rows, drafted and
     * accepted are not known (NULL). Digests, draws and times of phases are NULL unless computed
     * here. us_arrived: from sending the request until the step's last token arrived; us_since: the
     * same, since the step before. */
    "CREATE VIEW v_step AS SELECT t.session_id AS session, t.n AS turn, s.n AS step"
    STEP_COLUMNS(STEP_VIEW)
    " FROM turn t JOIN step s ON s.turn_id=t.id LEFT JOIN pages x ON x.step_id=s.id;"

    /* One row a generated token. k: its place in the step; drafted: 1 when the draft tree held it,
     * 0 for the token that the target sampled at the end; forced: 1 for a token that was given by
     * hand; logp: the target's log probability of the token at temperature 1; rival: the best other
     * token of that row; NULL: not recorded. The texts of a server's tokens are those that it
     * sent. */
    "CREATE VIEW v_token AS SELECT session, turn, step, k, "
    "position, " I32("w") " AS token, drafted,"
    " coalesce(" TEXT_OF(I32("w")) ",sent) AS text, forced, " F32("wl") " AS logp,"
    " CASE WHEN wr=4294967295 THEN NULL ELSE wr END AS rival,"
    " coalesce(" TEXT_OF("wr") ",sent_rival) AS rival_text, " F32("wm") " AS rival_logp"
    " FROM (SELECT session, turn, step, k, position, drafted, forced, z, sent, sent_rival,"
    " " U32("h") " AS w, " U32("hl") " AS wl, " U32("hr") " AS wr, " U32("hm") " AS wm"
    " FROM (SELECT t.session_id AS session, t.n AS turn, s.n AS step, i.key AS k, z.id AS z,"
    " CASE s.kind WHEN 'prefill' THEN s.pos0+s.rows ELSE s.pos0+1+i.key END AS position,"
    " CASE s.source WHEN 'piece' THEN NULL ELSE i.key<s.accepted END AS drafted,"
    " i.key<s.forced AS forced,"
    " (SELECT o.text FROM top o WHERE o.step_id=s.id AND o.k=i.key AND o.rank=0) AS sent,"
    " (SELECT o.text FROM top o WHERE o.step_id=s.id AND o.k=i.key AND o.rank=1) AS sent_rival,"
    " hex(substr(s.tokens,4*i.key+1,4)) AS "
    "h, " FACT(0) " AS hl, " FACT(4) " AS hr, " FACT(8) " AS hm"
    " FROM turn t" VOCABULARY " JOIN step s ON s.turn_id=t.id"
    " JOIN " COUNT_UP("length(s.tokens)/4") " i));"

    /* One row for each of the best tokens at a position, as a server reported them; rank 0: the
     * emitted token. k: as in v_token. token: NULL where the server gives the text only. */
    "CREATE VIEW v_top AS SELECT t.session_id AS session, t.n AS turn, s.n AS step, o.k, o.rank,"
    " o.token, o.text, o.logp FROM turn t JOIN step s ON s.turn_id=t.id JOIN top o ON "
    "o.step_id=s.id;"

    /* One row a node of a draft tree, the root (node 0) included. q: the draft's probability of the
     * node after its parent; p: the target's at temperature 1; u: the uniform number drawn at the
     * node; NULL: unknown. rank: place among the children of its parent, from 1. */
    "CREATE VIEW v_node AS SELECT session, turn, step, node, parent, depth, rank, "
    I32("w") " AS token, CASE fate WHEN 1 THEN 'accepted' WHEN 2 THEN 'rejected' WHEN 3 THEN 'cut'"
    " ELSE 'none' END AS fate, " F32("wq") " AS q, " F32("wp") " AS p, " F32("wu") " AS u,"
    " " TEXT_OF(I32("w")) " AS text"
    " FROM (SELECT t.session_id AS session, t.n AS turn, s.n AS step, i.key AS node, z.id AS z,"
    " CASE i.key WHEN 0 THEN NULL ELSE " BYTE(NODE_BYTES("i.key", 4, 1)) " END AS parent,"
    " (WITH RECURSIVE up(node, d) AS (SELECT i.key, 0 UNION ALL"
    " SELECT " BYTE(NODE_BYTES("node", 4, 1)) ", d+1 FROM up WHERE node>0 AND d<64)"
    " SELECT max(d) FROM up) AS depth,"
    " CASE i.key WHEN 0 THEN NULL ELSE (SELECT count(*) FROM " COUNT_UP("i.key+1") " j"
    " WHERE " NODE_BYTES("j.key", 4, 1) "=" NODE_BYTES("i.key", 4, 1) ") END AS rank,"
    " " BYTE(NODE_BYTES("i.key", 5, 1)) " AS fate,"
    " " U32("hex(" NODE_BYTES("i.key", 0, 4) ")") " AS w,"
    " " U32("hex(" NODE_BYTES("i.key", 6, 4) ")") " AS wq,"
    " " U32("hex(" NODE_BYTES("i.key", 10, 4) ")") " AS wp,"
    " " U32("hex(" NODE_BYTES("i.key", 14, 4) ")") " AS wu"
    " FROM turn t" VOCABULARY " JOIN step s ON s.turn_id=t.id JOIN tree x ON x.step_id=s.id"
    " JOIN " COUNT_UP("(length(x.nodes)-2)/18") " i);"

    /* One row a page that changed hands; seq orders those of a step. logical: the page's place in
     * the page table of its holder, NULL where it has none. reset: the pools are empty from
     * here. */
    "CREATE VIEW v_page(session, turn, step, seq, pool, op, page, logical, refs, holder) AS"
    " SELECT session, turn, step, seq, CASE pool WHEN 0 THEN 'full' WHEN 1 THEN 'swa'"
    " ELSE 'draft' END, CASE op WHEN 0 THEN 'take' WHEN 1 THEN 'share' WHEN 2 THEN 'drop'"
    " WHEN 3 THEN 'free' WHEN 4 THEN 'window' WHEN 5 THEN 'reset' ELSE 'hold' END, page+k*dir,"
    " CASE WHEN col>2147483647 THEN NULL ELSE col+k*dir END, refs, CASE holder"
    " WHEN 0 THEN 'session' WHEN 1 THEN 'checkpoint' WHEN 2 THEN 'idle' ELSE 'batch' END"
    " FROM (SELECT t.session_id AS session, t.n AS turn, s.n AS step, j.key AS k,"
    " (i.key<<24)+j.key AS seq,"
    " " RUN_BYTE(0) " AS pool, " RUN_BYTE(1) " AS op, " RUN_BYTE(2) " AS holder,"
    " CASE WHEN " RUN_BYTE(3) ">127 THEN " RUN_BYTE(3) "-256 ELSE " RUN_BYTE(3) " END AS dir,"
    " " RUN_U32(4) " AS page, " RUN_U32(8) " AS col, " RUN_U32(12) " AS refs"
    " FROM turn t JOIN step s ON s.turn_id=t.id JOIN pages x ON x.step_id=s.id"
    " JOIN " COUNT_UP("(length(x.events)-21)/20") " i JOIN " RUN_EVENTS " j);"

    /* One row a metric of the server, before the request and after the reply; change: the
     * difference. Other clients of the server count, too. */
    "CREATE VIEW v_metric AS SELECT t.session_id AS session, t.n AS turn, m.name, m.labels, "
    "m.before, m.after, m.after-m.before AS change FROM turn t JOIN metric m ON m.turn_id=t.id;";
