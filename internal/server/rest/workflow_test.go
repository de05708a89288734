package rest_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

func TestWorkflows(t *testing.T) {
	w := newFixture(t, nil)
	bob := []string{"Authorization", "Bearer " + w.Other}
	space := read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", `{"name":"shop","files":[{"path":"a","content":"one"}],"collaborators":[{"owner":"bob","role":"reviewer"}]}`), 201)
	made := ask(t, w, "POST", "/v1/workflows", `{"workspace":"shop","name":"page","task":"a page","reviewer":"bob","max_revisions":1,"limits":{"review":"1h"},"metadata":{"a":[1.50]}}`)
	x := read[v1.Workflow](t, made, 201)
	if made.Header().Get("Location") != "/v1/workflows/"+x.ID {
		t.Errorf("it is at %s", made.Header().Get("Location"))
	}
	want := v1.Workflow{
		Owner: "ann", WorkspaceID: space.ID, Name: "page", Task: "a page", Stage: v1.WorkflowCreation, Current: "creator", Reviewer: "bob", MaxRevisions: 1,
		Limits: v1.WorkflowLimits{Review: v1.Duration(time.Hour)}, Metadata: []byte(`{"a":[1.50]}`),
	}
	if d := gocmp.Diff(want, x, cmpopts.IgnoreFields(v1.Workflow{}, "ID", "CreatedAt", "ChangedAt")); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	one := "/v1/workflows/" + x.ID
	for _, body := range []string{`{}`, `{"workspace":"shop","name":"a b"}`, `{"workspace":"shop","max_revisions":21}`, `{"workspace":"shop","limits":{"review":"1ms"}}`, `{"workspace":"shop","limits":{"review":"91d"}}`, `{"workspace":"shop","metadata":[1]}`} {
		refused(t, ask(t, w, "POST", "/v1/workflows", body), 400, engi.Invalid)
	}
	refused(t, ask(t, w, "POST", "/v1/workflows", `{"workspace":"shop","name":"page"}`), 409, engi.Conflict)
	refused(t, ask(t, w, "POST", "/v1/workflows", `{"workspace":"none"}`), 404, engi.NotFound)
	refused(t, ask(t, w, "POST", "/v1/workflows", `{"workspace":"ann/shop"}`, bob...), 403, engi.Denied)
	refused(t, ask(t, w, "GET", one+"/feedback", ""), 404, engi.NotFound)

	refused(t, ask(t, w, "POST", one+"/submit", "", bob...), 403, engi.Denied)
	x = read[v1.Workflow](t, ask(t, w, "POST", one+"/submit", `{"notes":"done"}`), 200)
	if x.Stage != v1.WorkflowReview || x.Revision != 1 || len(x.Hash) != 40 || x.Notes != "done" || x.DeadlineAt == nil || x.Submitter == "" {
		t.Errorf("%+v", x)
	}
	for _, body := range []string{`{}`, `{"decision":"void"}`, `{"decision":"approve"}`, `{"decision":"approve","revision":-1}`} {
		refused(t, ask(t, w, "POST", one+"/review", body, bob...), 400, engi.Invalid)
	}
	refused(t, ask(t, w, "POST", one+"/review", `{"decision":"approve","revision":1}`), 403, engi.Denied)
	ask(t, w, "PUT", "/v1/workspaces/shop/files?path=a", "two")
	refused(t, ask(t, w, "POST", one+"/review", `{"decision":"approve","revision":1}`, bob...), 409, engi.Conflict)
	x = read[v1.Workflow](t, ask(t, w, "POST", one+"/review", `{"decision":"send_back","grade":"C","feedback":"no","suggestions":["x"]}`, bob...), 200)
	r := read[v1.Review](t, ask(t, w, "GET", one+"/feedback", "", bob...), 200)
	if x.Stage != v1.WorkflowRevision || x.Round != 1 || r.Approved || r.Grade != "C" || r.Feedback != "no" || len(r.Suggestions) != 1 || r.Revision != 1 || r.Reviewer == x.Submitter {
		t.Errorf("%+v %+v", x, r)
	}
	read[v1.Workflow](t, ask(t, w, "POST", one+"/submit", ""), 200)
	if x = read[v1.Workflow](t, ask(t, w, "POST", one+"/review", `{"decision":"approve","revision":2}`, bob...), 200); x.Stage != v1.WorkflowApproved || !x.Over() || !x.Review.Approved {
		t.Errorf("%+v", x)
	}
	if x = read[v1.Workflow](t, ask(t, w, "GET", one+"?wait=1m", ""), 200); x.Stage != v1.WorkflowApproved {
		t.Errorf("%+v", x)
	}
	ask(t, w, "PUT", "/v1/workspaces/shop/files?path=a", "three")
	if x = read[v1.Workflow](t, ask(t, w, "GET", one+"?wait=1m&stage=revision", ""), 200); x.Stage != v1.WorkflowRevision {
		t.Errorf("%+v", x)
	}
	first := read[v1.List[v1.WorkflowEvent]](t, ask(t, w, "GET", one+"/history?limit=5", "", bob...), 200)
	rest := read[v1.List[v1.WorkflowEvent]](t, ask(t, w, "GET", one+"/history?limit=5&cursor="+first.NextCursor, ""), 200)
	if len(first.Items) != 5 || len(rest.Items) != 1 || rest.Items[0].Action != "void" || rest.Items[0].Number != 6 || first.Items[2].Details == nil {
		t.Errorf("%+v %+v", first, rest)
	}
	for query, n := range map[string]int{"": 1, "?stage=review": 0, "?stage=revision&workspace=shop": 1} {
		if all := read[v1.List[v1.Workflow]](t, ask(t, w, "GET", "/v1/workflows"+query, ""), 200); len(all.Items) != n {
			t.Errorf("%s: %+v", query, all.Items)
		}
	}
	read[v1.Workflow](t, ask(t, w, "POST", one+"/escalate", `{"reason":"late"}`, bob...), 200)
	refused(t, ask(t, w, "POST", one+"/submit", "", bob...), 403, engi.Denied)
	refused(t, ask(t, w, "DELETE", one, "", bob...), 403, engi.Denied)
	if x = read[v1.Workflow](t, ask(t, w, "POST", one+"/cancel", ""), 200); x.Stage != v1.WorkflowRejected {
		t.Errorf("%+v", x)
	}
	if rec := ask(t, w, "DELETE", one, ""); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	refused(t, ask(t, w, "GET", one, ""), 404, engi.NotFound)
}

// TestWorkflowTemplates makes a workspace from a template, and answers the criteria of its reviews.
func TestWorkflowTemplates(t *testing.T) {
	w := newFixture(t, nil)
	all := read[v1.List[v1.WorkflowTemplate]](t, ask(t, w, "GET", "/v1/workflow-templates", ""), 200).Items
	if len(all) != 3 || all[2].Name != "static-website" || all[2].Preview != "static" || len(all[2].Files) != 3 || len(all[1].Services) != 2 {
		t.Errorf("%+v", all)
	}
	refused(t, ask(t, w, "POST", "/v1/workflows", `{"workspace":"site","template":"nothing"}`), 404, engi.NotFound)
	x := read[v1.Workflow](t, ask(t, w, "POST", "/v1/workflows", `{"workspace":"site","template":"static-website","criteria":["Hours"]}`), 201)
	if len(x.Criteria) != 6 || x.Criteria[5] != "Hours" {
		t.Errorf("%+v", x)
	}
	if space := read[v1.Workspace](t, ask(t, w, "GET", "/v1/workspaces/site", ""), 200); space.ID != x.WorkspaceID || space.Revision != 1 || space.Owner != "ann" {
		t.Errorf("%+v", space)
	}
	path := "/v1/workflows/" + x.ID
	read[v1.Workflow](t, ask(t, w, "POST", path+"/submit", ""), 200)
	p := refused(t, ask(t, w, "POST", path+"/review", `{"decision":"send_back","criteria":[{"criterion":"Hours","met":false}]}`), 400, engi.Invalid)
	if !strings.Contains(p.Remedy, "HTML validity") || strings.Contains(p.Remedy, "Hours") {
		t.Errorf("%s", p.Remedy)
	}
	var q v1.ReviewRequest
	q.Decision = "send_back"
	for _, c := range x.Criteria {
		q.Criteria = append(q.Criteria, v1.CriterionResult{Criterion: c, Met: c != "Hours", Comment: "seen"})
	}
	body, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	if x = read[v1.Workflow](t, ask(t, w, "POST", path+"/review", string(body)), 200); gocmp.Diff(q.Criteria, x.Review.Criteria) != "" {
		t.Errorf("%+v", x.Review)
	}
}
