package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
	"github.com/engi-dev/engi/test/env"
)

// fields is a page with an element for each component of A2UI.
const fields = `<main><h1>Sign up</h1><form id="f" data-action="join" data-list="7"><p><label>Name <input name="name" value="Ann"></label></p><p><textarea name="why" placeholder="Why">x</textarea></p>` +
	`<p><label><input type="checkbox" name="news" checked> News</label></p><p>Size <select name="size"><option>s<option value="M" selected>m</select></p>` +
	`<p><label><input type="radio" name="pay" value="1" checked> card</label><label><input type="radio" name="pay" value="2"> cash</label></p>` +
	`<p><input type="range" name="age" max="99" value="30"></p><p><input type="date" name="day" value="2026-11-23" aria-label="Day"></p><button>Go</button></form>` +
	`<hr><p><img src="data:image/png;base64,AA" alt="dot"><a href="https://example.com/">out</a><input type="checkbox" data-action="done" aria-label="done"></p></main>`

// TestPages reads the streams of a page by the AI SDK, AG-UI's client, with its
// verifier, json-render and A2UI: from the beginning, and from the middle of a call, of a
// message and of a page. The page comes from a fake with fixed answers.
func TestPages(t *testing.T) {
	env.Slow(t)
	if _, err := os.Stat("js/node_modules/@ag-ui/client"); err != nil {
		env.Need(t, "the packages below js (make packages)")
	}
	w, srv := apitest.Serve(t, func(o *apitest.Options) { o.Beat = time.Millisecond })
	session, err := client.New(srv.URL, w.User).CreateSession(t.Context(), v1.SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	form, err := client.New(srv.URL, w.User).CreateSession(t.Context(), v1.SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Pages.Happen(t.Context(), engi.SessionID(form.ID), engi.PageUpdate{Kind: engi.PageReplaced, HTML: fields}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "js/page.mjs", srv.URL, w.User, session.ID, form.ID)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	counter := `<main><h1 id="count">%d</h1><button data-action="add">+</button></main>`
	want := map[string]any{
		"ai_demo-counter": []any{"ready", "assistant", true, "step-start", "data-html", "data-html"},
		"ai_tools":        []any{"ready", "assistant", true, "step-start", "data-html", `dynamic-tool output-available run_code {"code":"6*7"} 42`},
		"ai_bad":          []any{"ready", "assistant", true, "step-start", "data-html", "data-error", "data-error"},
		"ai_fail":         []any{"error", "assistant", true, "step-start", "data-html", "data-error"},
		"aiError":         "the model is gone", "aiMessages": 8., "aiResume_tools": []any{true, true, true}, "aiResume_bad": []any{true, true, true},

		"aiIdle": []any{0., "ready"}, "aiBack": []any{1., "ready", 0., "data-html", "data-stats"},
		"aiSeen": "data-html data-action data-html data-stats data-action data-html data-stats",

		"agui_demo-counter": []any{"RUN_STARTED STATE_SNAPSHOT STATE_SNAPSHOT RUN_FINISHED", ""},
		"agui_add":          []any{"RUN_STARTED STATE_SNAPSHOT STATE_DELTA RUN_FINISHED", ""},
		"agui_tools":        []any{"RUN_STARTED STATE_SNAPSHOT TOOL_CALL_START TOOL_CALL_ARGS TOOL_CALL_END TOOL_CALL_RESULT RUN_FINISHED", `assistant||run_code{"code":"6*7"}; tool|42|`},
		"agui_bad":          []any{"RUN_STARTED STATE_SNAPSHOT TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_FINISHED", "assistant|nothing matches #nowhere\nnothing matches #there\n|"},
		"agui_stats":        []any{"RUN_STARTED STATE_SNAPSHOT CUSTOM RUN_FINISHED", ""},
		"agui_fail":         "RUN_STARTED STATE_SNAPSHOT TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT RUN_ERROR",
		"aguiState":         []any{fmt.Sprintf(counter, 0), 0.}, "aguiError": "the model is gone",
		"aguiEarly":        []any{"RUN_STARTED STATE_SNAPSHOT RUN_FINISHED RUN_STARTED CUSTOM RUN_FINISHED RUN_STARTED STATE_DELTA STATE_DELTA STATE_SNAPSHOT RUN_FINISHED", fmt.Sprintf(counter, 0), 0.},
		"aguiResume_tools": []any{true, true, "RUN_STARTED STATE_DELTA TOOL_CALL_START TOOL_CALL_END TOOL_CALL_RESULT RUN_FINISHED"},
		"aguiResume_bad":   []any{true, true, "RUN_STARTED STATE_DELTA TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_FINISHED"},

		// The values are: valid, faults, elements, patches read.
		"jsonRender": []any{true, 0., 6., 2.}, "jsonRenderOn": []any{true, 0., 6., 4.}, "jsonRenderLater": []any{true, 0., 6., 5.}, "jsonRenderPage": fmt.Sprintf(counter, 3),

		// The values are: faults, and the drawn components.
		"a2ui": []any{0., "Column(Column(Text 0, Button(Text +)))"}, "a2uiOn": []any{0., "Column(Column(Text 1, Button(Text +)))"}, "a2uiForm": []any{0., "Column(Column(Text Sign up, Column(TextField, TextField, CheckBox, Row(Text Size, ChoicePicker), ChoicePicker, Slider, DateTimeInput, Button(Text Go)), " +
			"Divider, Row(Image, Button(Text out), Button(Text ☐ done))))"},
		"a2uiData":   map[string]any{"__23f": map[string]any{"_name": "Ann", "_why": "x", "_news": true, "_size": []any{"M"}, "_pay": []any{"1"}, "_age": 30., "_day": "2026-11-23"}},
		"a2uiAction": []any{[]any{"add", true, map[string]any{}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff, errs.String())
	}
}
