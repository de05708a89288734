package client_test

import (
	"context"
	"fmt"

	"github.com/engi-dev/engi/api/v1"
)

const guide = "# Acme SDK\n\nTalks to Acme.\n\n## Issues\n\nCall issues() to list them.\n"

func ExampleClient_AddDocument() {
	c, stop := connect()
	defer stop()
	d := must(c.AddDocument(context.Background(), v1.DocumentRequest{Package: "@acme/sdk", Text: guide}))
	fmt.Println(d.Title, d.State, d.Chunks)
	// Output: Acme SDK ready 2
}

func ExampleClient_SearchDocuments() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.AddDocument(ctx, v1.DocumentRequest{Package: "@acme/sdk", Text: guide}))
	found := must(c.SearchDocuments(ctx, v1.SearchRequest{Query: "how do I list issues", Package: "@acme/sdk", Limit: 1}))
	for _, h := range found.Hits {
		fmt.Println(h.Title, h.Headings)
	}
	// Output: Acme SDK [Issues]
}

func ExampleClient_Documents() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.AddDocument(ctx, v1.DocumentRequest{Package: "@acme/sdk", URL: "https://example.com/sdk.md"}))
	for _, d := range must(c.Documents(ctx)) {
		fmt.Println(d.Package, d.Title, d.Fetched)
	}
	// Output: @acme/sdk sdk.md true
}

func ExampleClient_Document() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	d := must(c.AddDocument(ctx, v1.DocumentRequest{Text: guide}))
	d = must(c.Document(ctx, d.ID))
	fmt.Println(d.Title, d.Bytes)
	// Output: Acme SDK 67B
}

func ExampleClient_RemoveDocument() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	d := must(c.AddDocument(ctx, v1.DocumentRequest{Text: guide}))
	fmt.Println(c.RemoveDocument(ctx, d.ID), len(must(c.Documents(ctx))))
	// Output: <nil> 0
}

func ExampleClient_RefreshDocuments() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.AddDocument(ctx, v1.DocumentRequest{URL: "https://example.com/sdk.md"}))
	for _, d := range must(c.RefreshDocuments(ctx)) {
		fmt.Println(d.URL, d.State)
	}
	// Output: https://example.com/sdk.md ready
}

func ExampleClient_RefreshDocument() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	d := must(c.AddDocument(ctx, v1.DocumentRequest{URL: "https://example.com/sdk.md"}))
	again := must(c.RefreshDocument(ctx, d.ID))
	fmt.Println(again.CheckedAt.After(d.CheckedAt))
	// Output: true
}

func ExampleClient_DocumentPackages() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.AddDocument(ctx, v1.DocumentRequest{Package: "@acme/sdk", Text: guide}))
	for _, p := range must(c.DocumentPackages(ctx)) {
		fmt.Println(p.Name, p.Documents, p.Chunks)
	}
	// Output: @acme/sdk 1 2
}

func ExampleClient_SaveModules() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "chat-42"}))
	all := must(c.SaveModules(ctx, "chat-42", []v1.CodeModuleRequest{{
		Path: "lib/acme.ts", Description: "Lists open issues.", Exports: []string{"open"}, Usage: "import { open } from './lib/acme.ts'",
	}}))
	fmt.Println(all[0].Path, all[0].Scope)
	// Output: lib/acme.ts session
}

func ExampleClient_SessionModules() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "chat-42"}))
	must(c.SaveModules(ctx, "chat-42", []v1.CodeModuleRequest{{Path: "lib/acme.ts", Description: "Lists open issues."}}))
	for _, m := range must(c.SessionModules(ctx, "chat-42")) {
		fmt.Println(m.Path, m.Description)
	}
	// Output: lib/acme.ts Lists open issues.
}

func ExampleClient_Modules() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "chat-42"}))
	must(c.SaveModules(ctx, "chat-42", []v1.CodeModuleRequest{{Path: "lib/acme.ts", Description: "Lists open issues.", Scope: "user"}}))
	for _, m := range must(c.Modules(ctx)) {
		fmt.Printf("%s\n%s", m.Path, m.Source)
	}
	// Output:
	// lib/acme.ts
	// export const source = 'lib/acme.ts'
}
