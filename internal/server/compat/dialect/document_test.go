package dialect_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/test/apitest"
)

// TestPDFs sends PDFs by every format.
func TestPDFs(t *testing.T) {
	pdf := base64.StdEncoding.EncodeToString([]byte("%PDF-1.7\n%%EOF"))
	url := "data:application/pdf;base64," + pdf
	var heard scripted.Conversation
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
		heard = c
		return scripted.Answer{Text: "yes"}
	})
	completion := func(file string) (string, string) {
		return "/v1/chat/completions", `{"model":"quiet","messages":[{"role":"user","content":[{"type":"text","text":"read"},{"type":"file","file":` + file + `}]}]}`
	}
	message := func(block string) (string, string) {
		return "/v1/messages", `{"model":"quiet","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"read"},` + block + `]}]}`
	}
	response := func(part string) (string, string) {
		return "/v1/responses", `{"model":"quiet","input":[{"role":"user","content":[{"type":"input_text","text":"read"},` + part + `]}]}`
	}
	sent := func(name string) string { return `"file":{"file_data":"` + url + `","filename":"` + name + `"}` }
	for _, c := range []struct {
		form func(string) (string, string)
		file string
		want string // of the model's request; or of an error, after !
	}{
		{completion, `{"filename":"a.pdf","file_data":"` + url + `"}`, sent("a.pdf")},
		{completion, `{"file_data":"` + pdf + `"}`, sent("document.pdf")},
		{completion, `{"file_id":"file_1"}`, "!is not part of the request"},
		{completion, `{"file_data":"data:text/csv;base64,YQ=="}`, "!a file of type"},
		{completion, `{"file_data":"YQ=="}`, "!is no PDF"},
		{completion, `{"file_data":"?"}`, "!no base64"},
		{message, `{"type":"document","title":"a.pdf","source":{"type":"base64","media_type":"application/pdf","data":"` + pdf + `"}}`, sent("a.pdf")},
		{message, `{"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"what it says"}}`, `T\nwhat it says`},
		{message, `{"type":"document","source":{"type":"base64","media_type":"text/html","data":"YQ=="}}`, "!a document of type"},
		{message, `{"type":"document","source":{"type":"url","url":"http://x.example/a.pdf"}}`, "!is not part of the request"},
		{message, `{"type":"document","citations":{"enabled":true},"source":{"type":"base64","media_type":"application/pdf","data":"` + pdf + `"}}`, "!citations"},
		{response, `{"type":"input_file","filename":"a.pdf","file_data":"` + url + `"}`, sent("a.pdf")},
		{response, `{"type":"input_file","file_url":"http://x.example/a.pdf"}`, "!is not part of the request"},
	} {
		path, body := c.form(c.file)
		rec := apitest.Ask(t, w, "POST", path, body)
		if text, refused := strings.CutPrefix(c.want, "!"); refused {
			if rec.Code != 400 || !strings.Contains(rec.Body.String(), text) || !strings.Contains(rec.Body.String(), `"remedy"`) && text != "no base64" {
				t.Errorf("%s %s: %d %s", path, c.file, rec.Code, rec.Body)
			}
		} else if rec.Code != 200 || !strings.Contains(string(heard.Raw), c.want) {
			t.Errorf("%s %s: %d %s; the model was asked %s", path, c.file, rec.Code, rec.Body, heard.Raw)
		}
	}
	large := base64.StdEncoding.EncodeToString([]byte("%PDF-1.7\n" + strings.Repeat("x", 8<<20)))
	path, body := completion(`{"file_data":"` + large + `"}`)
	if rec := apitest.Ask(t, w, "POST", path, body); rec.Code != 413 || !strings.Contains(rec.Body.String(), "bytes") {
		t.Errorf("%d %.300s", rec.Code, rec.Body)
	}
}
