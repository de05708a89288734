package rest

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
	"github.com/engi-dev/engi/internal/network/egress/request"
)

// TestRulesForModels holds that the rules in the documentation let through what
// clients of models send, and nothing that has the service fetch or run something.
func TestRulesForModels(t *testing.T) {
	page, err := os.ReadFile("../../../docs/network-rules.md")
	if err != nil {
		t.Fatal(err)
	}
	const history = `{"role":"user","content":"Hi"},{"role":"user","content":[{"type":"text","text":"Hi"}]}`
	const schema = `{"type":"object","properties":{"source":{"type":"string"},"file":{"type":["string","null"]},"url":{"type":"string"}}}`
	for _, c := range []struct {
		name, host, path string
		good, bad        []string
	}{
		{"anthropic", "api.anthropic.com", "/v1/messages", []string{
			`{"model":"claude-sonnet-4-5","max_tokens":1024,"messages":[` + history + `],"tools":[{"name":"a","input_schema":` + schema + `},{"type":"custom","name":"b"}],"tool_choice":{"type":"auto"}}`,
			`{"model":"claude-haiku-4-5","max_tokens":1,"stream":true,"system":[{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aa"}},{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"b"}]}]}]}`,
		}, []string{
			`{"model":"claude-opus-4-5"}`, `{"max_tokens":99999}`, `{"mcp_servers":[{"type":"url","url":"https://x.example"}]}`, `{"tools":[{"type":"web_search_20250305","name":"web_search"}]}`, `{"tools":[{"type":"web_fetch_20250910"}]}`,
			`{"tools":[{"type":"code_execution_20250825"}]}`, `{"container":"c"}`, `{"tools":[{"type":"mcp_toolset","mcp_server_name":"x"}]}`, `{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://x.example"}}]}]}`,
			`{"messages":[{"content":[{"type":"document","source":{"type":"file","file_id":"f"}}]}]}`, `{"messages":[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"https://x.example"}}]}]}]}`,
			`{"messages":[{"content":[{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"type":"url","url":"https://x.example"}}]}}]}]}`, `{"messages":[{"content":[{"type":"container_upload","file_id":"f"}]}]}`,
		}},
		{"openai", "api.openai.com", "/v1/chat/completions", []string{
			`{"model":"gpt-5","messages":[` + history + `,{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"a","arguments":"{}"}}]}],"max_completion_tokens":100,"tools":[{"type":"function","function":{"name":"a","parameters":` + schema + `}}]}`,
			`{"model":"gpt-5-mini","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aa","detail":"low"}}]}]}`,
		}, []string{
			`{"model":"gpt-5-search-api"}`, `{"web_search_options":{}}`, `{"n":9}`, `{"tools":[{"type":"web_search"}]}`, `{"tools":[{"type":"mcp","server_url":"https://x.example"}]}`, `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://x.example"}}]}]}`,
			`{"messages":[{"content":[{"type":"image_url","image_url":"https://x.example"}]}]}`, `{"messages":[{"content":[{"type":"file","file":{"file_id":"f"}}]}]}`, `{"messages":[{"content":{"type":"image_url","image_url":{"url":"https://x.example"}}}]}`, `{"max_tokens":99999}`,
		}},
		{"openai", "api.openai.com", "/v1/responses", []string{
			`{"model":"gpt-5","input":"Hi","max_output_tokens":100}`,
			`{"model":"gpt-5","input":[` + strings.ReplaceAll(history, `"text","text"`, `"input_text","text"`) + `,{"type":"function_call_output","call_id":"a","output":"b"},{"type":"message","role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,aa"}]}],"tools":[{"type":"function","name":"a","parameters":` + schema + `}],"tool_choice":"auto"}`,
		}, []string{
			`{"tools":[{"type":"web_search"}]}`, `{"tools":[{"type":"mcp","server_url":"https://x.example"}]}`, `{"tools":[{"type":"code_interpreter","container":{"type":"auto"}}]}`, `{"tools":[{"type":"file_search"}]}`, `{"tools":[{"type":"image_generation"}]}`,
			`{"input":[{"role":"user","content":[{"type":"input_image","image_url":"https://x.example"}]}]}`, `{"input":[{"role":"user","content":[{"type":"input_file","file_url":"https://x.example"}]}]}`, `{"input":[{"role":"user","content":[{"type":"input_text","file_url":"https://x.example"}]}]}`,
			`{"prompt":{"id":"p"}}`, `{"previous_response_id":"r"}`, `{"conversation":"c"}`, `{"background":true}`, `{"tool_choice":{"type":"web_search_preview"}}`, `{"input":[{"type":"item_reference","id":"i"}]}`,
			`{"input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"https://x.example"}]}]}`, `{"input":[{"type":"mcp_list_tools","server_label":"x"}]}`, `{"input":{"role":"user","content":[{"type":"input_file","file_url":"https://x.example"}]}}`,
		}},
		{"gemini", "generativelanguage.googleapis.com", "/v1beta/models/gemini-2.5-pro:streamGenerateContent", []string{
			`{"contents":[{"role":"user","parts":[{"text":"Hi"},{"inlineData":{"mimeType":"image/png","data":"aa"}}]}],"systemInstruction":{"parts":[{"text":"Be brief."}]},"generationConfig":{"maxOutputTokens":100},"tools":[{"functionDeclarations":[{"name":"a","parameters":` + schema + `}]}]}`,
			`{"contents":[{"parts":[{"functionResponse":{"name":"a","response":{"fileData":"b"}}}]}]}`,
		}, []string{
			`{"tools":[{"googleSearch":{}}]}`, `{"tools":[{"google_search":{}}]}`, `{"tools":[{"urlContext":{}}]}`, `{"tools":[{"codeExecution":{}}]}`, `{"tools":[{"functionDeclarations":[],"googleMaps":{}}]}`, `{"tools":{"googleSearch":{}}}`, `{"cachedContent":"c"}`,
			`{"contents":[{"parts":[{"fileData":{"fileUri":"https://x.example"}}]}]}`, `{"contents":[{"parts":[{"file_data":{"file_uri":"https://x.example"}}]}]}`, `{"contents":[{"parts":{"fileData":{"fileUri":"https://x.example"}}}]}`, `{"contents":{"parts":[{"fileData":{"fileUri":"https://x.example"}}]}}`,
			`{"systemInstruction":{"parts":[{"fileData":{"fileUri":"https://x.example"}}]}}`, `{"system_instruction":{"parts":[{"fileData":{}}]}}`, `{"contents":[{"parts":[{"functionResponse":{"name":"a","parts":[{"fileData":{}}]}}]}]}`, `{"generationConfig":{"maxOutputTokens":99999}}`, `{"generation_config":{"max_output_tokens":99999}}`,
		}},
	} {
		_, text, ok := strings.Cut(string(page), "<!-- rules: "+c.name+" -->\n```json\n")
		text, _, closed := strings.Cut(text, "```")
		var q v1.NetworkPolicy
		if err := json.Unmarshal([]byte(text), &q); err != nil || !ok || !closed {
			t.Fatalf("%s: %v", c.name, err)
		}
		var check checker
		p := networkOf(&check, "", &q)
		if err := check.err(); err != nil {
			t.Fatal(err)
		}
		compiled, err := policy.Compile(p, policy.Node{})
		if err != nil {
			t.Fatal(err)
		}
		judge := func(body string) (policy.RequestVerdict, string) {
			j := &request.Judging{Request: request.Request{Method: "POST", Path: c.path}, Body: func(int64) ([]byte, error) { return []byte(body), nil }}
			v, err := compiled.Request(c.host, 443, true, j)
			if err != nil {
				t.Errorf("%s%s: %s: %v", c.host, c.path, body, err)
			}
			return v, j.Missed()
		}
		for _, body := range c.good {
			if v, missed := judge(body); v.Action != engi.RequestAllow {
				t.Errorf("%s%s: %s is refused: %s", c.host, c.path, body, missed)
			}
		}
		for _, body := range c.bad {
			if v, _ := judge(body); v.Action != engi.RequestDeny {
				t.Errorf("%s%s: %s passes", c.host, c.path, body)
			}
		}
	}
}
