package llm_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

// TestDocuments sends a PDF to every provider: as its format has it, or not at all.
func TestDocuments(t *testing.T) {
	for _, c := range []struct {
		provider, answer, want string
		dialect                llm.Dialect
	}{
		{"openai", `{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}`, `{"type":"file","file":{"file_data":"data:application/pdf;base64,JVBERi0=","filename":"a.pdf"}}`, ""},
		{"openai", `{"status":"completed","output":[]}`, `{"type":"input_file","file_data":"data:application/pdf;base64,JVBERi0=","filename":"a.pdf"}`, llm.Responses},
		{"anthropic", `{"content":[{"type":"text","text":"yes"}],"stop_reason":"end_turn"}`, `{"type":"document","title":"a.pdf","source":{"type":"base64","media_type":"application/pdf","data":"JVBERi0="}}`, ""},
		{"gemini", `{"candidates":[{"content":{"parts":[{"text":"yes"}]},"finishReason":"STOP"}]}`, `{"inlineData":{"mimeType":"application/pdf","data":"JVBERi0="}}`, ""},
		{"ollama", "", "", ""}, {"mistral", "", "", ""}, {"groq", "", "", ""},
	} {
		var sent any
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(w, c.answer)
		}))
		r, err := llm.New(llm.Options{Providers: map[string]llm.Provider{c.provider: {URL: web.URL, Dialect: c.dialect}}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = model(t, r, c.provider+":m1").Generate(t.Context(), llm.Request{Messages: []engi.Message{
			{Role: engi.RoleUser, Text: "read", Images: []engi.Image{{MediaType: engi.PDF, Data: []byte("%PDF-"), Name: "a.pdf"}}},
		}}, nil)
		web.Close()
		if c.want == "" {
			if !engi.Is(err, engi.Invalid) || !strings.Contains(engi.RemedyOf(err), "text") || sent != nil {
				t.Errorf("%s: %v, was sent %v", c.provider, err, sent)
			}
			continue
		}
		var want any
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		raw, _ := json.Marshal(sent) // it was JSON
		part, _ := json.Marshal(want)
		if err != nil || !strings.Contains(string(raw), string(part)) {
			t.Errorf("%s: %v, was sent %s", c.provider, err, raw)
		}
	}
}
