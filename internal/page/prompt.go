package page

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// grammar tells a model how to write pages. It is constant, so that providers
// can cache it.
const grammar = `You draw a web page and change it in answer to what its user does. You are shown the HTML inside the page's body, then what the user did last, after [NOW].
Answer with lines of JSON, each complete in its line, and nothing else: no prose, no Markdown. Each line is shown as soon as it is written.
{"type":"patches","patches":[{"selector":"#count","text":"5"}]} changes elements. A patch has a CSS selector and exactly one of: "text", "html", "append", "prepend", "before", "after" or "replace" with a string; "attr" or "style" with an object of strings, null removes one; "class" with an object of booleans; "value" of a field; "remove":true; "move":{"to":SELECTOR,"place":"append"|"prepend"|"before"|"after"}.
{"type":"full","html":"<main>...</main>"} replaces the page: use it for the first page or for another one, else patches.
{"type":"stats", ...} tells the program around the page something, in fields of your choice.
Give elements that change an id. A button is <button data-action="NAME" data-KEY="VALUE">: a click sends the action NAME with the data {"KEY":"VALUE"}. A form is <form data-action="NAME"> with named fields, whose values are sent. Scripts, event handlers, style elements and frames are removed; style elements with the style attribute. Answer every action of [NOW], in their order.`

// modulesHint follows grammar if answers can announce code.
const modulesHint = `
When you have written code to /workspace that is worth using again, end with a line {"type":"code_modules","modules":[{"path":"lib/x.ts","description":"...","exports":["f"],"usage":"import { f } from './lib/x.ts'"}]}`

func (s *Service) system() string {
	if s.opt.Sandbox && s.opt.Docs != nil {
		return grammar + modulesHint
	}
	return grammar
}

// Agent is the name of the agent that answers actions without an agent.
const Agent = "ui"

// agentTools are the tools of the agent for pages, as far as the node has them.
var agentTools = []string{"search_docs", "run_code"}

// WithAgent returns agents with the agent for pages, which is the built-in one unless agents contains
// it. It comes last, because the first agent is a node's default.
func WithAgent(agents []engi.AgentSpec) []engi.AgentSpec {
	ui := engi.AgentSpec{Name: Agent, Description: "Draws the page of a session and changes it in answer to what its user does.", Steps: 10, Tools: agentTools}
	if at := slices.IndexFunc(agents, func(a engi.AgentSpec) bool { return a.Name == Agent }); at >= 0 {
		ui = agents[at]
		agents = slices.Delete(slices.Clone(agents), at, at+1)
	}
	return append(agents, ui)
}

// WithTools returns agents without those tools of the agent for pages that are
// not in tools, because a node without sandboxes also has pages.
func WithTools(agents []engi.AgentSpec, tools []tool.Tool) []engi.AgentSpec {
	agents = slices.Clone(agents)
	for i := range agents {
		if agents[i].Name != Agent {
			continue
		}
		agents[i].Tools = slices.DeleteFunc(slices.Clone(agents[i].Tools), func(name string) bool {
			return slices.Contains(agentTools, name) && !slices.ContainsFunc(tools, func(t tool.Tool) bool { return t.Name == name })
		})
	}
	return agents
}

// A note is stored with runs that answer actions.
type note struct {
	Session engi.SessionID `json:"ui"`
}

func noteOf(id engi.SessionID) json.RawMessage {
	raw, _ := json.Marshal(note{id}) // encoding a string cannot fail
	return raw
}

// Answers reports whether a run answers actions on a page. The service saves the
// modules that such runs announce.
func Answers(r engi.Run) bool {
	var n note
	return json.Unmarshal(r.Note, &n) == nil && n.Session != ""
}

// promptText returns the prompt of a run, with its most constant parts first.
func promptText(html string, recent, past []string, actions []Action) string {
	var b strings.Builder
	if html != "" {
		b.WriteString("HTML:\n" + html + "\n")
	}
	part := func(name string, items []string) {
		if len(items) == 0 {
			return
		}
		b.WriteString("[" + name + "]")
		for i, item := range items {
			end := "\n"
			if i == 0 {
				end = " "
			}
			fmt.Fprintf(&b, "%s%d. %s", end, i+1, item)
		}
		b.WriteString("\n")
	}
	part("RECENT CHANGES", recent)
	part("RELEVANT PAST CONTEXT", past)
	now := make([]string, len(actions))
	for i, a := range actions {
		now[i] = actionText(a.Name, a.Data)
	}
	part("NOW", now)
	return strings.TrimSuffix(b.String(), "\n")
}

func actionText(name string, data json.RawMessage) string {
	return "Action: " + name + " Data: " + string(data)
}

const (
	maxRecent     = 6   // maximum number of recent actions that are shown, with their results
	maxPast       = 200 // maximum number of past actions that are compared
	maxRelevant   = 5   // maximum number of similar actions that are shown
	maxItem       = 300 // maximum bytes of one action with its result
	leastSimilar  = 0.1
	led           = " -> " // separates an action from its result
	vectorTimeout = 2 * time.Second
	maxVectors    = 4000 // maximum number of vectors in memory, of all owners
)

// history returns the last changes of the page before actions, oldest first, and
// similar older actions, the most similar first.
func (s *Service) history(ctx context.Context, r Record, actions []Action) (recent, past []string, err error) {
	f := engi.EventFilter{Subject: string(r.Session), Before: actions[0].Seq, Limit: 4 * maxRecent,
		Types: []string{engi.EventPageActed, engi.EventPagePatched, engi.EventPageReplaced, engi.EventPageRestored}}
	events, err := s.opt.Events.List(ctx, engi.Everyone, f)
	if err != nil {
		return nil, nil, err
	}
	slices.Reverse(events)
	for _, e := range events {
		d, err := decodeEvent(e)
		if err != nil {
			return nil, nil, err
		}
		text := ""
		switch e.Type {
		case engi.EventPageActed:
			recent = append(recent, clip.Line(actionText(d.Action, d.Data), maxItem))
			continue
		case engi.EventPagePatched:
			text = patchesText(d.Patches)
		case engi.EventPageReplaced:
			text = "the page was replaced"
		case engi.EventPageRestored:
			text = "the user went back to an earlier page"
		}
		if n := len(recent); n > 0 && len(recent[n-1]) < 2*maxItem {
			recent[n-1] += led + text
		}
	}
	recent = recent[max(0, len(recent)-maxRecent):]
	if s.opt.Embedder == nil {
		return recent, nil, nil
	}
	f.Types, f.Limit = []string{engi.EventPageActed}, maxPast
	if events, err = s.opt.Events.List(ctx, engi.Everyone, f); err != nil {
		return nil, nil, err
	}
	var texts []string
	shown := map[string]bool{}
	for _, r := range recent {
		text, _, _ := strings.Cut(r, led)
		shown[text] = true
	}
	for _, e := range events {
		d, err := decodeEvent(e)
		if err != nil {
			return nil, nil, err
		}
		if text := clip.Line(actionText(d.Action, d.Data), maxItem); !shown[text] {
			shown[text] = true
			texts = append(texts, text)
		}
	}
	return recent, s.similar(ctx, r.Owner, texts, actions), nil
}

// similar returns the texts similar to one of the actions. It returns none if
// vectors cannot be computed, because the model can answer without them.
func (s *Service) similar(ctx context.Context, owner engi.Owner, texts []string, actions []Action) []string {
	if len(texts) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, vectorTimeout)
	defer cancel()
	n := len(texts)
	for _, a := range actions {
		texts = append(texts, clip.Line(actionText(a.Name, a.Data), maxItem))
	}
	vs, err := s.vectors.of(ctx, s.opt.Embedder, owner, texts)
	if err != nil {
		s.opt.Log.WarnContext(ctx, "compare actions on a page with earlier ones", "error", err)
		return nil
	}
	type scored struct {
		text  string
		score float32
	}
	var all []scored
	for i, v := range vs[:n] {
		best := scored{texts[i], 0}
		for _, q := range vs[n:] {
			best.score = max(best.score, product(v, q))
		}
		if best.score >= leastSimilar {
			all = append(all, best)
		}
	}
	slices.SortStableFunc(all, func(a, b scored) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return 0
	})
	var found []string
	for _, x := range all[:min(len(all), maxRelevant)] {
		found = append(found, x.text)
	}
	return found
}

func product(a, b []float32) (sum float32) {
	for i := range min(len(a), len(b)) {
		sum += a[i] * b[i]
	}
	return sum
}

// vectors caches vectors of texts, since most are compared again at the next action.
// When the cache is full, the owner with the most vectors loses one, so that owners do not evict
// each other's. It is safe for concurrent use.
type vectors struct {
	mu   sync.Mutex
	size int // number of vectors of all owners
	kept map[engi.Owner]map[string][]float32
}

// of returns one vector per text.
func (v *vectors) of(ctx context.Context, e Embedder, owner engi.Owner, texts []string) ([][]float32, error) {
	all := make([][]float32, len(texts))
	missing := map[string][]int{} // indexes of a text in the result
	var ask []string
	v.mu.Lock()
	for i, t := range texts {
		if all[i] = v.kept[owner][t]; all[i] == nil {
			if missing[t] == nil {
				ask = append(ask, t)
			}
			missing[t] = append(missing[t], i)
		}
	}
	v.mu.Unlock()
	if len(ask) == 0 {
		return all, nil
	}
	found, err := e.Embed(ctx, owner, ask)
	if err == nil && len(found) != len(ask) {
		err = engi.Errorf(engi.Unavailable, "%d vectors for %d texts", len(found), len(ask))
	}
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, t := range ask {
		for _, at := range missing[t] {
			all[at] = found[i]
		}
		v.keep(owner, t, found[i])
	}
	return all, nil
}

// keep adds a vector to the cache.
func (v *vectors) keep(owner engi.Owner, text string, vector []float32) {
	if v.kept == nil {
		v.kept = map[engi.Owner]map[string][]float32{}
	}
	if v.kept[owner] == nil {
		v.kept[owner] = map[string][]float32{}
	}
	if _, ok := v.kept[owner][text]; !ok {
		v.size++
	}
	v.kept[owner][text] = vector
	if v.size <= maxVectors {
		return
	}
	most := owner
	for o, theirs := range v.kept {
		if len(theirs) > len(v.kept[most]) {
			most = o
		}
	}
	// Drop an arbitrary one: a page with too many texts would need the oldest again first.
	for t := range v.kept[most] {
		delete(v.kept[most], t)
		v.size--
		break
	}
	if len(v.kept[most]) == 0 {
		delete(v.kept, most)
	}
}

// patchesText describes patches in a few words.
func patchesText(patches []engi.PagePatch) string {
	var b strings.Builder
	for i, p := range patches {
		if b.Len() > maxItem/2 {
			fmt.Fprintf(&b, " and %d more", len(patches)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(clip.Line(p.Selector, 60))
		switch {
		case p.Text != nil:
			b.WriteString(" = " + clip.Line(*p.Text, 60))
		case p.Value != nil:
			b.WriteString(" = " + clip.Line(*p.Value, 60))
		case p.Remove:
			b.WriteString(" removed")
		case p.Move != nil:
			b.WriteString(" moved")
		case p.Append != nil || p.Prepend != nil || p.Before != nil || p.After != nil:
			b.WriteString(" added to")
		default:
			b.WriteString(" changed")
		}
	}
	return b.String()
}
