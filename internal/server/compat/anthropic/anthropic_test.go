package anthropic_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/test/apitest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { http.DefaultClient.CloseIdleConnections() }))
}

// TestMessages speaks Anthropic's format, with a tool of the client's beside the
// agent's own.
func TestMessages(t *testing.T) {
	var mu sync.Mutex
	var heard []scripted.Conversation
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, c)
		if len(c.Last().Results) > 0 {
			return scripted.Answer{Text: "It rains in Bonn."}
		}
		return scripted.Answer{Text: "Let me see.", Calls: []scripted.Call{
			{ID: "own", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hello"}`}, {ID: "theirs", Name: "get_weather", Arguments: `{"city":"Bonn"}`}}}
	})
	const rest = `"max_tokens":500,"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}],"tools":[{"name":"get_weather","input_schema":{"type":"object"}}]`
	first := `{"model":"coder","messages":[{"role":"user","content":[{"type":"text","text":"How is it?"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw=="}}]}],` + rest
	type message struct {
		Content []struct {
			Type, Text, ID, Name string
			Input                json.RawMessage
		}
		Stop  string `json:"stop_reason"`
		Usage map[string]int64
	}
	whole := apitest.Read[message](t, apitest.Ask(t, w, "POST", "/v1/messages", first+"}"), 200)
	if len(whole.Content) != 2 || whole.Content[0].Text != "Let me see." || whole.Content[1].Name != "get_weather" || string(whole.Content[1].Input) != `{"city":"Bonn"}` || whole.Stop != "tool_use" || whole.Usage["output_tokens"] == 0 {
		t.Fatalf("%+v", whole)
	}
	if h := heard[0]; h.System != "be brief" || h.Last().Images != 1 || !strings.Contains(string(h.Raw), `"max_tokens":500`) {
		t.Errorf("the model heard %s", h.Raw)
	}
	var events []string
	streamed, estimated := map[string]string{}, 0
	for line := range strings.SplitSeq(apitest.Ask(t, w, "POST", "/v1/messages", first+`,"stream":true}`).Body.String(), "\n") {
		if name, ok := strings.CutPrefix(line, "event: "); ok && (len(events) == 0 || events[len(events)-1] != name) {
			events = append(events, name)
		}
		var e struct {
			Block   struct{ Type, Name, ID string } `json:"content_block"`
			Delta   map[string]any
			Message struct {
				Usage struct {
					Input int `json:"input_tokens"`
				}
			}
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			streamed["name"] += e.Block.Name
			estimated = max(estimated, e.Message.Usage.Input)
			for _, k := range []string{"text", "partial_json", "stop_reason"} {
				if v, ok := e.Delta[k].(string); ok {
					streamed[k] += v
				}
			}
		}
	}
	if want := "message_start content_block_start content_block_delta content_block_stop content_block_start content_block_delta content_block_stop message_delta message_stop"; strings.Join(events, " ") != want ||
		streamed["text"] != "Let me see." || streamed["partial_json"] != `{"city":"Bonn"}` || streamed["name"] != "get_weather" || streamed["stop_reason"] != "tool_use" {
		t.Errorf("%v %v", events, streamed)
	}
	id := whole.Content[1].ID
	second := apitest.Read[message](t, apitest.Ask(t, w, "POST", "/v1/messages", fmt.Sprintf(`{"model":"coder","messages":[{"role":"user","content":"How is it?"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"Let me see."},{"type":"tool_use","id":%q,"name":"get_weather","input":{"city":"Bonn"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":%q,"content":[{"type":"text","text":"rain"}]},{"type":"text","text":"And?"}]}],`, id, id)+rest+"}"), 200)
	last := heard[len(heard)-1]
	if second.Stop != "tool_use" && second.Stop != "end_turn" || last.Last().Text != "And?" || len(last.Turns[len(last.Turns)-2].Results) != 2 {
		t.Errorf("%+v; the model heard %s", second, last.Raw)
	}
	for fields, want := range map[string]string{
		`"top_k":5`: "top_k", `"mcp_servers":[{"url":"x"}]`: "mcp_servers", `"tools":[{"type":"web_search_20250305","name":"web_search"}]`: "tools[0]",
		`"tool_choice":{"type":"maybe"}`: "tool_choice", `"thinking":{"type":"deep"}`: "thinking", `"max_tokens":0`: "max_tokens",
	} {
		rec := apitest.Ask(t, w, "POST", "/v1/messages", `{"model":"coder","max_tokens":5,"messages":[{"role":"user","content":"hi"}],`+fields+"}")
		var e struct {
			Error struct{ Type, Message string }
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil || rec.Code != 400 || e.Error.Type != "invalid_request_error" || !strings.HasPrefix(e.Error.Message, want) {
			t.Errorf("%s: %d %s", fields, rec.Code, rec.Body)
		}
	}
	if n := apitest.Read[map[string]int](t, apitest.Ask(t, w, "POST", "/v1/messages/count_tokens", first+`,"stream":true}`), 200)["input_tokens"]; n < 50 || n != estimated {
		t.Errorf("%d tokens", n)
	}
}
