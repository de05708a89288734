package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// raceDetector reports whether this is a build with the race detector.
var raceDetector bool

// A schemaWalker makes requests of a JSON schema in which one value is large.
type schemaWalker struct {
	schemas map[string]map[string]any // that references name
}

func (s schemaWalker) resolve(schema map[string]any) map[string]any {
	for {
		ref, ok := schema["$ref"].(string)
		if !ok {
			break
		}
		schema = s.schemas[ref[strings.LastIndex(ref, "/")+1:]]
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		if some, ok := schema[key].([]any); ok {
			return s.resolve(some[0].(map[string]any))
		}
	}
	return schema
}

func typeOf(schema map[string]any) string {
	switch t := schema["type"].(type) {
	case string:
		return t
	case []any:
		for _, x := range t {
			if x != "null" {
				return x.(string)
			}
		}
	}
	if schema["properties"] != nil {
		return "object"
	}
	return ""
}

// small is a small value of a schema, in JSON.
func (s schemaWalker) small(schema map[string]any, depth int) string {
	schema = s.resolve(schema)
	if enum, ok := schema["enum"].([]any); ok {
		b, _ := json.Marshal(enum[0]) // it was JSON
		return string(b)
	}
	switch typeOf(schema) {
	case "string":
		return `"x"`
	case "integer", "number":
		return "1"
	case "boolean":
		return "true"
	case "array":
		return "[]"
	case "object":
		return s.object(schema, nil, depth)
	}
	return "1"
}

// object is one with what it must have, and with other members.
func (s schemaWalker) object(schema map[string]any, with map[string]string, depth int) string {
	members := maps.Clone(with)
	if members == nil {
		members = map[string]string{}
	}
	required, _ := schema["required"].([]any)
	properties, _ := schema["properties"].(map[string]any)
	for _, r := range required {
		if _, there := members[r.(string)]; !there && depth < 8 {
			if p, ok := properties[r.(string)].(map[string]any); ok {
				members[r.(string)] = s.small(p, depth+1)
			}
		}
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		parts = append(parts, fmt.Sprintf("%q:%s", name, members[name]))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// A growth is a way to make a value larger.
type growth struct {
	name string
	make func(n int) string
}

func list(open, close string, item func(i int) string) func(n int) string {
	return func(n int) string {
		var b strings.Builder
		b.WriteString(open)
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(item(i))
		}
		return b.String() + close
	}
}

// anything are values that grow where any JSON may be.
var anything = []growth{
	{"a long string", func(n int) string { return `"` + strings.Repeat("x", n) + `"` }},
	{"escapes", func(n int) string { return `"` + strings.Repeat(`\u00e9`, n) + `"` }},
	{"headings", func(n int) string { return `"` + strings.Repeat(`# x\n`, n) + `"` }},
	{"a list", list("[", "]", func(int) string { return "1" })},
	{"a list of lists", list("[", "]", func(int) string { return "[]" })},
	{"members", list("{", "}", func(i int) string { return fmt.Sprintf(`"f%d":0`, i) })},
	{"the same member", list("{", "}", func(int) string { return `"f":0` })},
	{"nesting", func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }},
	{"nested objects", func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }},
	{"a long number", func(n int) string { return "1" + strings.Repeat("0", n) }},
}

// grow returns the ways in which values of a schema grow: itself, and what is in it.
func (s schemaWalker) grow(schema map[string]any, depth int) (all []growth) {
	if schema = s.resolve(schema); depth > 6 {
		return nil
	}
	switch typeOf(schema) {
	case "string":
		return anything[:3]
	case "array":
		items, _ := schema["items"].(map[string]any)
		one := s.small(items, depth)
		all = append(all, growth{"many", list("[", "]", func(int) string { return one })})
		for _, g := range s.grow(items, depth+1) {
			all = append(all, growth{"0." + g.name, func(n int) string { return "[" + g.make(n) + "]" }})
		}
	case "object":
		properties, _ := schema["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			for _, g := range s.grow(properties[name].(map[string]any), depth+1) {
				all = append(all, growth{name + "." + g.name, func(n int) string {
					return s.object(schema, map[string]string{name: g.make(n)}, depth)
				}})
			}
		}
		if more, ok := schema["additionalProperties"].(map[string]any); ok {
			one := s.small(more, depth)
			all = append(all, growth{"many members", list("{", "}", func(i int) string { return fmt.Sprintf(`"f%d":%s`, i, one) })},
				growth{"a long name", func(n int) string { return `{"` + strings.Repeat("x", n) + `":` + one + `}` }})
		} else if properties == nil {
			return anything
		}
	case "":
		return anything
	}
	return all
}

// TestEveryInputCostsByItsSize grows every value of every request that has a JSON
// body, on every surface. What the node allocates for one grows with its size and no
// faster, and so do answers.
func TestEveryInputCostsByItsSize(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates, too")
	}
	c, o := fakeNode(t)
	c.Sessions.Enabled, c.Sessions.Template = true, "host"
	c.Quota.Sandboxes = 1 // requests that are right end when they have been read
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	admin := apiClient{t, n.Endpoint().URL, n.AdminKey()}
	names := map[string]string{
		"sandboxes": admin.make("/v1/sandboxes", `{}`, "id"), "sessions": admin.make("/v1/sessions", `{}`, "id"),
		"volumes": admin.make("/v1/volumes", `{"name":"v"}`, "id"),
	}
	t.Cleanup(func() {
		for kind, id := range names {
			admin.ask("DELETE", "/v1/"+kind+"/"+id, "")
		}
	})
	fill := func(path string) string {
		elements := strings.Split(path, "/")
		for i, e := range elements {
			if strings.HasPrefix(e, "{") {
				elements[i] = "x"
				if id := names[elements[i-1]]; id != "" && !strings.HasSuffix(path, "/run_code") { // which starts interpreters
					elements[i] = id
				}
			}
		}
		return strings.Join(elements, "/")
	}

	type input struct {
		name, method, path string
		body               growth
	}
	var all []input
	var doc struct {
		Paths map[string]map[string]struct {
			RequestBody struct {
				Content map[string]struct{ Schema map[string]any }
			}
		}
		Components struct{ Schemas map[string]map[string]any }
	}
	_, openapi := admin.ask("GET", "/openapi.json", "")
	if err := json.Unmarshal([]byte(openapi), &doc); err != nil {
		t.Fatal(err)
	}
	walker := schemaWalker{doc.Components.Schemas}
	for path, operations := range doc.Paths {
		for method, o := range operations {
			body, ok := o.RequestBody.Content["application/json"]
			if !ok {
				continue
			}
			for _, g := range append(walker.grow(body.Schema, 0), anything...) {
				all = append(all, input{method + " " + path + " " + g.name, strings.ToUpper(method), fill(path), g})
			}
		}
	}
	// The description does not have bodies of other servers' formats.
	agent := n.Agents().Agents()[0].Name
	message := func(content string) string { return `[{"role":"user","content":` + content + `}]` }
	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"} {
		for _, g := range append([]growth{
			{"empty objects", list("[", "]", func(int) string { return "{}" })},
			{"messages", list("[", "]", func(int) string { return `{"role":"user","content":"x"}` })},
			{"parts", func(n int) string {
				return message(list("[", "]", func(int) string { return `{"type":"text","text":"x"}` })(n))
			}},
			{"documents", func(n int) string {
				return message(list("[", "]", func(int) string {
					return `{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"eA=="}}`
				})(n))
			}},
			{"files", func(n int) string {
				return message(list("[", "]", func(int) string { return `{"type":"file","file":{"file_data":"eA=="}}` })(n))
			}},
			{"input files", func(n int) string {
				return message(list("[", "]", func(int) string { return `{"type":"input_file","file_data":"eA=="}` })(n))
			}},
			{"input parts", func(n int) string {
				return message(list("[", "]", func(int) string { return `{"type":"input_text","text":"x"}` })(n))
			}},
			{"items", list("[", "]", func(int) string { return `{"type":"function_call","call_id":"x","name":"x","arguments":"{}"}` })},
			{"outputs", list("[", "]", func(int) string { return `{"type":"function_call_output","call_id":"x","output":"x"}` })},
			{"functions", list("[", "]", func(i int) string {
				return fmt.Sprintf(`{"type":"function","name":"f%d","parameters":{"type":"object"}}`, i)
			})},
			{"results", func(n int) string {
				return message(list("[", "]", func(int) string { return `{"type":"tool_result","tool_use_id":"x","content":"x"}` })(n))
			}},
			{"calls", func(n int) string {
				return `[{"role":"assistant","tool_calls":` + list("[", "]", func(int) string { return `{"id":"x","function":{"name":"x"}}` })(n) + `}]`
			}},
		}, anything...) {
			all = append(all, input{"POST " + path + " " + g.name, "POST", path, g})
			if !slices.Contains([]string{"empty objects", "items", "outputs", "functions", "a long string", "a list", "members", "nested objects"}, g.name) {
				continue
			}
			for _, field := range []string{"messages", "tools", "tool_choice", "stop", "stop_sequences", "system", "response_format", "output_config", "metadata", "model", "input", "instructions", "text", "reasoning", "include", "previous_response_id", "x"} {
				all = append(all, input{"POST " + path + " " + field + "." + g.name, "POST", path, growth{g.name, func(n int) string {
					if path == "/v1/responses" {
						return fmt.Sprintf(`{"model":%q,"input":"x",%q:%s}`, agent, field, g.make(n))
					}
					return fmt.Sprintf(`{"model":%q,"max_tokens":9,"messages":[{"role":"user","content":"x"}],%q:%s}`, agent, field, g.make(n))
				}}})
			}
		}
	}
	for _, g := range append([]growth{{"empty texts", list("[", "]", func(int) string { return `""` })}}, anything...) {
		for _, field := range []string{"input", "model", "dimensions", "x"} {
			all = append(all, input{"POST /v1/embeddings " + field + "." + g.name, "POST", "/v1/embeddings", growth{g.name, func(n int) string {
				return fmt.Sprintf(`{"model":"built-in:words-1","input":"x",%q:%s}`, field, g.make(n))
			}}})
		}
	}
	all = append(all, input{"POST /v1/embeddings texts", "POST", "/v1/embeddings", growth{"texts", func(n int) string {
		return `{"model":"built-in:words-1","encoding_format":"base64","input":` + list("[", "]", func(int) string { return `"` + strings.Repeat("word ", 200) + `"` })(n) + "}"
	}}})
	rest := len(all)
	for _, pattern := range n.e2b.Routes() {
		method, path, ok := strings.Cut(pattern, " ")
		if !ok || method == "GET" {
			continue
		}
		for _, g := range anything {
			all = append(all, input{pattern + " " + g.name, method, fill(path), g})
		}
		for _, field := range []string{"metadata", "envVars", "names", "steps", "x"} {
			for _, g := range []growth{anything[0], anything[3], anything[5], anything[7]} {
				all = append(all, input{pattern + " " + field + "." + g.name, method, fill(path), growth{g.name, func(n int) string {
					return fmt.Sprintf(`{%q:%s}`, field, g.make(n))
				}}})
			}
		}
	}
	e2b := len(all)
	var tools struct {
		Result struct {
			Tools []struct {
				Name        string
				InputSchema map[string]any
			}
		}
	}
	call := func(method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
	}
	begun := n.answer("POST", "/mcp", call("initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`))
	session := []string{"Mcp-Session-Id", begun.Header().Get("Mcp-Session-Id")}
	n.answer("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, session...)
	answer := n.answer("POST", "/mcp", call("tools/list", "{}"), session...).Body.String()
	_, data, _ := strings.Cut(answer, "data: ")
	if err := json.Unmarshal([]byte(data), &tools); err != nil {
		t.Fatalf("%v: %.300s", err, answer)
	}
	if len(tools.Result.Tools) == 0 {
		t.Fatalf("no tools: %.300s", answer)
	}
	for _, tool := range tools.Result.Tools {
		for _, g := range append(schemaWalker{}.grow(tool.InputSchema, 0), anything...) {
			all = append(all, input{"MCP " + tool.Name + " " + g.name, "POST", "/mcp", growth{g.name, func(n int) string {
				return call("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool.Name, g.make(n)))
			}}})
		}
	}
	for _, g := range anything {
		all = append(all, input{"MCP " + g.name, "POST", "/mcp", g}, input{"MCP params " + g.name, "POST", "/mcp", growth{g.name, func(n int) string { return call("ping", g.make(n)) }}})
	}
	all = append(all, input{"MCP batch", "POST", "/mcp", growth{"batch", list("[", "]", func(i int) string { return call("ping", "{}") })}})
	if rest < 200 || e2b-rest < 200 || len(all)-e2b < 50 {
		t.Fatalf("%d, %d and %d inputs are too few to be all", rest, e2b-rest, len(all)-e2b)
	}

	worst := map[string]float64{}
	began := time.Now()
	for _, x := range all {
		var fault string
		for range 3 { // the node does other things, too: the least of three is the request's
			if worst[x.name], fault = n.grown(t, x.method, x.path, x.body.make, session); fault == "" {
				break
			}
		}
		if fault != "" {
			t.Errorf("%s: %s", x.name, fault)
		}
	}
	order := slices.SortedFunc(maps.Keys(worst), func(a, b string) int { return int(worst[b]*1000) - int(worst[a]*1000) })
	for _, name := range order[:10] {
		t.Logf("%s: %.1f bytes for each", name, worst[name])
	}
	t.Logf("%d inputs of REST, %d of E2B, %d of MCP in %s", rest, e2b-rest, len(all)-e2b, time.Since(began).Round(time.Second))
}

// grown sends larger and larger bodies. It returns what each byte of the last one
// costs, and what is wrong with how that grows.
func (n *Node) grown(t *testing.T, method, path string, body func(n int) string, header []string) (perByte float64, fault string) {
	t.Helper()
	var sizes, costs []float64
	for _, size := range []int{10, 1000, 10_000, 100_000} {
		text := body(size)
		bytes, answered := n.allocated(method, path, text, header...)
		if limit := 4*len(text) + 64<<10; answered > limit {
			return 0, fmt.Sprintf("%d bytes are answered with %d", len(text), answered)
		}
		sizes, costs = append(sizes, float64(len(text))), append(costs, bytes)
		// What clearly costs little is not tried with more.
		if size == 10_000 && bytes < 8*float64(len(text))+1<<18 {
			break
		}
	}
	last := len(sizes) - 1
	perByte = costs[last] / sizes[last]
	// Buffers that double may cost twice as much for each byte; squares cost ten times.
	power := math.Log(costs[last]/costs[0]) / math.Log(sizes[last]/sizes[0])
	if power > 1.1 || perByte > 2*costs[last-1]/sizes[last-1]+8 {
		return perByte, fmt.Sprintf("allocations grow with the power %.2f of the size: %.0f for %.0f bytes", power, costs, sizes)
	}
	if costs[last] > 64*sizes[last]+64<<20 {
		return perByte, fmt.Sprintf("%.0f bytes are allocated for each, %.0f MiB in all", perByte, costs[last]/(1<<20))
	}
	return perByte, ""
}

// answer sends a request to the node's handler.
func (n *Node) answer(method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+n.AdminKey())
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	n.handler.ServeHTTP(w, r)
	return w
}

// allocated returns how many bytes were allocated for a request, and the size of the
// answer.
func (n *Node) allocated(method, path, body string, header ...string) (bytes float64, size int) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w := n.answer(method, path, body, header...)
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc), w.Body.Len()
}
