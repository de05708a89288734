package project_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/app/project"
	"github.com/engi-dev/engi/test/seed"
	"github.com/evanw/esbuild/pkg/api"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestImports(t *testing.T) {
	tests := map[string]struct {
		path, content string
		want          []string // type, path, package and line of each import
		problems      []string
	}{
		"every kind": {"src/App.tsx", `import React, { useState } from 'react'
import * as d3 from "d3"
import './index.css'
import type { Props } from './types'
import { type Other, value } from './other'
import logo from './logo.svg?url'
import type from './type'
const Page = lazy(() => import('./Page'))
const fs = require('node:fs'), old = require("lodash/get")
export * from '@scope/pkg/sub/path'
export { a, b as c } from './b'
export type { T } from './t'
if (import.meta.hot) console.log(import.meta.env.MODE)
// import no from 'comment'
const s = "import no from 'string'", t = ` + "`import no from 'template' ${await import('./in-template')}`" + `
const re = /import "no"/
export default () => <p title="import 'no'">import no from 'text' {import('./in-jsx')}</p>
`, []string{"static react react 1", "static d3 d3 2", "static ./index.css  3", "type ./types  4", "static ./other  5", "static ./logo.svg?url  6", "static ./type  7", "dynamic ./Page  8", "require node:fs  9", "require lodash/get lodash 9", "static @scope/pkg/sub/path @scope/pkg 10", "static ./b  11", "type ./t  12", "dynamic ./in-template  15", "dynamic ./in-jsx  17", "jsx react/jsx-runtime react 1"}, nil},
		"on several lines": {"a.ts", "import {\n  a,\n  b,\n} from\n  'x'\nexport {\n  c\n}\nconst from = 'y'\nexport const d = from\n", []string{"static x x 1"}, nil},
		"of TypeScript":    {"a.ts", "import fs = require('fs')\nimport type X from 'x'\nimport { A } from 'kept'\nlet v: import('y').T\nexport import Z = A.B\nconst a = <T,>(x: T) => x\n", []string{"require fs  1", "type x x 2", "static kept kept 3", "type y y 4"}, nil},
		"what is not one":  {"a.js", "const o = { import: 1, require: 2 }\no.import('no')\no.require('no')\nimport(name)\nrequire(name)\nrequire('a' + b)\n", []string{"require a a 6"}, nil},
		"syntax error":     {"src/App.jsx", "import a from 'a'\nexport default function App() {\n  return <div>\n}\n", []string{"static a a 1"}, []string{"src/App.jsx:5:1"}},
		"strange names":    {"a.js", "import 'virtual:x'\nimport 'https://esm.sh/y'\nimport '#internal'\nimport '@/components/x'\nimport '~/x'\nimport 'npm:z'\nimport '../../../etc/passwd'\nimport 'Foo'\nimport 'fs/promises'\nimport ' '\nimport '@scope'\n", []string{"static virtual:x  1", "static https://esm.sh/y  2", "static #internal  3", "static @/components/x  4", "static ~/x  5", "static npm:z  6", "static ../../../etc/passwd  7", "static Foo  8", "static fs/promises  9", "static    10", "static @scope  11"}, nil},
		"styles":           {"src/index.css", "@import \"tailwindcss\";\n@import url('./theme.css') layer(base);\n/* @import \"no\"; */\n@import url(https://fonts.example/x.css);\n@plugin \"@tailwindcss/typography\";\n@source \"../x\";\n.a { background: url(./bg.png) }\n.b { background: url('data:image/png;base64,xx') }\n", []string{"css tailwindcss tailwindcss 1", "css ./theme.css  2", "css https://fonts.example/x.css  4", "css @tailwindcss/typography @tailwindcss/typography 5", "url ./bg.png  7"}, nil},
		"Python":           {"main.py", "\"\"\"import no\nimport no2\n\"\"\"\nimport os, sys\nimport numpy as np, yaml\nfrom fastapi import FastAPI\nfrom .models import Item\nfrom PIL import Image\nx = '''\nimport no3\n'''\n    import google.cloud.storage\n# import no4\n", []string{"python os  4", "python sys  4", "python numpy numpy 5", "python yaml pyyaml 5", "python fastapi fastapi 6", "python .models  7", "python PIL pillow 8", "python google.cloud.storage google 12"}, nil},
		"another file":     {"notes.md", "import a from 'a'", nil, nil},
		"declarations":     {"x.d.ts", "import { A } from 'a'\n", []string{"type a a 1"}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			imports, problems := project.Imports(tt.path, tt.content)
			var got, wrong []string
			for _, im := range imports {
				got = append(got, fmt.Sprintf("%s %s %s %d", im.Type, im.Path, im.Package, im.Line))
			}
			for _, p := range problems {
				wrong = append(wrong, fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column))
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(tt.problems, wrong); d != "" {
				t.Error(d, problems)
			}
		})
	}
}

func TestMissing(t *testing.T) {
	files := map[string]string{
		"package.json":   `{"dependencies": {"react": "19", "react-dom": "19"}, "devDependencies": {"vite": "8"}}`,
		"tsconfig.json":  "{\n  // aliases\n  \"compilerOptions\": { \"paths\": { \"@/*\": [\"./src/*\"], }, /* more */ },\n}\n",
		"vite.config.ts": "import { defineConfig } from 'vite'\nimport react from '@vitejs/plugin-react'\nimport path from 'path'\nexport default defineConfig({ plugins: [react()], resolve: { alias: { $lib: path.resolve(__dirname, './src/lib'), 'shared': fileURLToPath(new URL('./src/shared', import.meta.url)) } } })\n",
		"index.html":     "<script type=module src=/src/main.tsx></script>",
		"src/main.tsx":   "import App from './App'\nimport './index.css'\nimport { createRoot } from 'react-dom/client'\nimport '/vite.svg'\nimport './theme.scss'\n",
		"src/App.tsx": `import { Button } from '@/components/Button'
import { gone } from '@/components/Gone'
import { clsx } from 'clsx'
import type { T } from 'only-types'
import { x } from '$lib/x.js'
import y from 'shared/y'
import z from 'src/z'
import './Missing'
import Icon from './icon.svg?react'
import up from '../../outside'
import('framer-motion')
export default () => <Button />
`,
		"src/components/Button.tsx":  "export const Button = () => <button />",
		"src/lib/x.ts":               "export const x = 1",
		"src/shared/y/index.ts":      "export default 1",
		"src/index.css":              "@import 'tailwindcss';\n@import 'theme.css';\n.a { background: url(/bg.png), url(./nothing.png) }\n",
		"src/theme.css":              "",
		"src/theme.scss":             "@use 'parts';\n",
		"src/_parts.scss":            "",
		"src/icon.svg":               "",
		"public/vite.svg":            "",
		"public/bg.png":              "",
		"src/components/Button.d.ts": "import 'types-only'",
	}
	pkg, err := project.ParsePackage(files["package.json"])
	if err != nil {
		t.Fatal(err)
	}
	packages, problems := project.Missing(files, pkg)
	if d := cmp.Diff([]string{"@vitejs/plugin-react", "clsx", "framer-motion", "sass", "tailwindcss"}, packages); d != "" {
		t.Error(d)
	}
	var got []string
	for _, p := range problems {
		got = append(got, fmt.Sprintf("%s:%d %s", p.File, p.Line, strings.Fields(p.Text)[0]))
	}
	want := []string{"src/App.tsx:2 @/components/Gone", "src/App.tsx:7 src/z", "src/App.tsx:8 ./Missing", "src/App.tsx:10 ../../outside", "src/index.css:3 ./nothing.png"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if packages, _ := project.Missing(map[string]string{"a.jsx": "export default <a/>"}, project.Package{}); !slices.Equal(packages, []string{"react"}) {
		t.Errorf("JSX alone needs %v", packages)
	}
	if packages, _ := project.Missing(map[string]string{"a.jsx": "export default <a/>"}, project.Package{Dependencies: map[string]string{"preact": "10"}}); len(packages) != 0 {
		t.Errorf("JSX with Preact needs %v", packages)
	}
	if _, err := project.ParsePackage("{"); err == nil {
		t.Error("half a package.json was read")
	}
}

func TestMissingPython(t *testing.T) {
	files := map[string]string{
		"requirements.txt":   "# the API\nfastapi==0.120\nSQLAlchemy\n",
		"app/main.py":        "import os\nfrom fastapi import FastAPI, UploadFile\nfrom sqlalchemy.orm import Session\nfrom pydantic import BaseModel, EmailStr\nfrom app.db import engine\nfrom .models import Item\nfrom .nowhere import x\nimport jwt, cv2\nimport settings\n",
		"app/db.py":          "",
		"app/models.py":      "",
		"app/settings.py":    "",
		"scripts/seed.py":    "from db import engine\nimport httpx\n",
		"scripts/db.py":      "",
		"tests/test_main.py": "import pytest\nfrom main import app\n",
	}
	packages, problems := project.MissingPython(files)
	if d := cmp.Diff([]string{"email-validator", "httpx", "opencv-python-headless", "pyjwt", "pytest", "python-multipart"}, packages); d != "" {
		t.Error(d)
	}
	if len(problems) != 1 || problems[0].File != "app/main.py" || problems[0].Line != 7 {
		t.Error(problems)
	}
}

func TestRestarts(t *testing.T) {
	for p, want := range map[string]bool{
		"src/App.tsx": false, "vite.config.ts": true, "package.json": true, "src/package.json": true, "tsconfig.app.json": true, ".env": true, ".env.local": true,
		"tailwind.config.js": true, "requirements.txt": true, "README.md": false, "src/environment.ts": false, "src/vite.config.test.ts": false, "index.html": false,
	} {
		if got := project.Restarts([]string{"src/a.js", p}); got != want {
			t.Errorf("%s: %v", p, got)
		}
	}
}

var app = map[string]string{
	"package.json":   `{"name": "shop", "dependencies": {"react": "^19", "react-router-dom": "7"}, "devDependencies": {"vite": "8"}}`,
	"index.html":     "<!doctype html>\n<div id=\"root\"></div>\n<script type=\"module\" src=\"/src/main.tsx\"></script>\n",
	"vite.config.ts": "export default {}\n",
	"src/main.tsx":   "import { createRoot } from 'react-dom/client'\nimport App from './App'\nimport './index.css'\ncreateRoot(document.body).render(<App />)\n",
	"src/App.tsx": `import { BrowserRouter, Routes, Route } from 'react-router-dom'
import Home from './pages/Home'
import { Users, User } from './pages/Users'

export default function App() {
  return (
    <BrowserRouter>
      <Routes>
        <Route path="/" element={<Layout />}>
          <Route index element={<Home />} />
          <Route path="users" element={<Users />}>
            <Route path=":id" element={<User />} />
          </Route>
          <Route path="*" Component={Lost} />
        </Route>
      </Routes>
    </BrowserRouter>
  )
}

function Layout({ children }: { children?: React.ReactNode }) {
  return <main>{children}</main>
}

const Lost = () => <p>{'lost'}</p>
`,
	"src/pages/Home.tsx":  "import { memo } from 'react'\nconst MAX = 3\nexport const Home = memo(function Home() {\n  return <h1>Home</h1>\n})\nexport default Home\n",
	"src/pages/Users.tsx": "export class Users extends React.Component {\n  render() { return <User /> }\n}\nexport const User = () => <b />, other = 1\nexport async function load() {}\nexport { Users as People }\n",
	"src/router.jsx": `import { createBrowserRouter } from 'react-router'
import Admin from './Admin'
export const router = createBrowserRouter([
  {
    path: '/admin',
    children: [
      { index: true, element: <Admin /> },
      { path: 'logs', lazy: () => import('./Logs') },
      { path: '/absolute', Component: Admin },
    ],
    element: <Admin />,
  },
])
const notARoute = { path: '/tmp', size: 1 }
`,
	"server/index.js": "import express from 'express'\nconst app = express()\napp.get('/api/items', (req, res) => res.json([]))\napp.post(\"/api/items\", handler)\nconst x = map.get('/no')\napp.listen(3000)\n",
	"main.py":         "from fastapi import FastAPI\napp = FastAPI()\n\n@app.get(\"/py/{id}\")\nasync def item(id: int):\n    return id\n",
	"src/index.css":   "@import 'tailwindcss';\n",
	"src/broken.js":   "export const = 1\n",
	"src/a.test.ts":   "import { x } from './a'\n",
	"README.md":       "# Shop\n",
	"public/logo.png": "",
}

func TestManifest(t *testing.T) {
	b := project.NewBuilder()
	for p, c := range app {
		b.Update(p, "something else\n")
		b.Update(p, c)
	}
	b.Update("src/extra.tsx", "export const Extra = () => <i />\n")
	b.Remove("src/extra.tsx")
	raw, err := json.MarshalIndent(b.Manifest(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got := string(raw) + "\n"
	const golden = "testdata/manifest.json"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Error(d)
	}
}

// TestManifestIsKept changes the files of an app at random. The incremental manifest must
// equal the manifest of a new builder.
func TestManifestIsKept(t *testing.T) {
	paths := slices.Sorted(maps.Keys(app))
	paths = append(paths, "package.json", "tsconfig.json", "index.html", "src/main.tsx", "requirements.txt", "src/Admin.jsx")
	contents := slices.Collect(maps.Values(app))
	contents = append(contents, "", `{"dependencies": {"next": "15", "react": "19"}}`, `{"compilerOptions": {"paths": {"@/*": ["src/*"]}}}`,
		"import { Home } from '@/pages/Home'\nimport './index.css'\n", "<script type=\"module\" src=\"/src/main.tsx\"></script>\n", "flask==3\n")
	slices.Sort(contents)
	rapid.Check(t, func(t *rapid.T) {
		kept, files := project.NewBuilder(), map[string]string{}
		for range rapid.IntRange(1, 30).Draw(t, "changes") {
			p := rapid.SampledFrom(paths).Draw(t, "path")
			if rapid.IntRange(0, 3).Draw(t, "removes") == 0 {
				delete(files, p)
				kept.Remove(p)
			} else {
				files[p] = rapid.SampledFrom(contents).Draw(t, "content")
				kept.Update(p, files[p])
			}
			if rapid.IntRange(0, 4).Draw(t, "looks") > 0 {
				continue
			}
			anew := project.NewBuilder()
			for p, c := range files {
				anew.Update(p, c)
			}
			if d := cmp.Diff(anew.Manifest(), kept.Manifest()); d != "" {
				t.Fatalf("made anew and kept (-anew +kept):\n%s", d)
			}
			if anew.Weight() != kept.Weight() {
				t.Fatalf("it weighs %d, made anew %d", kept.Weight(), anew.Weight())
			}
		}
	})
}

func TestFileRoutes(t *testing.T) {
	for _, tt := range []struct{ pkg, path, want string }{
		{"next", "app/page.tsx", "/"}, {"next", "src/app/(shop)/items/[id]/page.tsx", "/items/:id"}, {"next", "app/api/[...all]/route.ts", "GET /api/*"},
		{"next", "pages/index.js", "/"}, {"next", "pages/blog/[slug].js", "/blog/:slug"}, {"next", "pages/_app.js", ""}, {"next", "src/lib/page.ts", ""},
		{"@tanstack/react-router", "src/routes/users.$id.tsx", "/users/:id"}, {"vite", "src/pages/Home.tsx", ""},
	} {
		b := project.NewBuilder()
		b.Update("package.json", `{"dependencies": {"`+tt.pkg+`": "1"}}`)
		b.Update(tt.path, "export const GET = 1\n")
		got := ""
		for _, r := range b.Manifest().Routes {
			got += strings.TrimSpace(r.Method + " " + r.Path)
		}
		if got != tt.want {
			t.Errorf("%s with %s: %q", tt.path, tt.pkg, got)
		}
	}
}

// TestHostile parses files for which a recursive parser would need minutes and
// gigabytes, or which would end the process.
func TestHostile(t *testing.T) {
	skipCosts(t)
	nested := [][3]string{
		{"[", "", "]"}, {"(", "1", ")"}, {"{", "", "}"}, {"a=>", "1", ""}, {"a?", "b", ":c"}, {"a?b:", "c", ""}, {"!", "1", ""}, {"- ", "1", ""}, {"a=", "1", ""}, {"a**", "1", ""},
		{"a.", "a", ""}, {"a?.", "a", ""}, {"a(", "", ")"}, {"a[", "1", "]"}, {"a,", "a", ""}, {"a()", "", ""}, {"a``", "", ""}, {"a+", "1", ""}, {"a&&", "1", ""}, {"a??", "1", ""},
		{"if(a)", ";", ""}, {"if(a);else ", ";", ""}, {"if(a){}else ", ";", ""}, {"for(;;)", ";", ""}, {"while(a)\n", ";", ""}, {"a:", ";", ""}, {"a:\n", ";", ""}, {"do ", ";", "while(a);"}, {"with(a)", ";", ""}, {"try{", "", "}finally{}"}, {"switch(a){case 1:", "", "}"},
		{"function a(){", "", "}"}, {"class a{static{", "", "}}"}, {"class extends ", "a", "{}"}, {"new ", "a", ""}, {"typeof ", "a", ""}, {"void\n", "a", ""}, {"await ", "a", ""}, {"async()=>", "a", ""}, {"yield ", "a", ""},
		{"`${", "1", "}`"}, {"({a:", "1", "})"}, {"[...", "a", "]"}, {"<a>", "", "</a>"}, {"<>", "", "</>"}, {"<a>;", "", "</a>"}, {"<a b={", "1", "}/>"}, {"<a>{", "", "}</a>"}, {"<a b=<a b=", "1", "/>/>"},
		{"let x:A<", "b", ">"}, {"let x:(", "b", ")"}, {"let x:", "b", ""}, {"type A=B extends C?", "D", ":E"}, {"namespace a{", "", "}"}, {"x as ", "y", ""}, {"<T>(x=", "1", ")=>1"}, {"a<(", "b", ")"}, {"keyof ", "a", ""},
		{"(a=", "1", ")=>1"}, {"({a=", "1", "})=>1"}, {"let{a:", "b", "}=c"}, {"@a(", "", ")class b{}"}, {"import(", "'a'", ")"}, {"'use strict';", "", ""}, {"\"a\"", "", ""}, {"/a/;", "", ""}, {"/[/", "", ""},
		{"[\")\",", "", "]"}, {"(/)/,", "1", ")"}, {"({})/(", "1", ")/1"}, {"a={}/[", "", "]/1"}, {"a++/(", "1", ")"}, {"()=>{}\n/[", "", "]/1"},
		// Many cheap parts.
		{"a;", "", ""}, {"var a;", "", ""}, {"function a(){}", "", ""}, {"a=>a;", "", ""}, {"import'a';", "", ""}, {"export{a};", "", ""}, {"<a/>;", "", ""}, {"{let a}", "", ""}, {"({a:1});", "", ""}, {"enum A{B}", "", ""}, {"\n", "", ""}, {"a\n", "", ""}, {"import ", "", ""}, {"import a from ", "", ""}, {"export type ", "", ""}, {"require(", "", ""},
	}
	for _, size := range []int{4 << 10, 90 << 10} {
		for i, n := range nested {
			k := size / (len(n[0]) + len(n[2]))
			src := strings.Repeat(n[0], k) + n[1] + strings.Repeat(n[2], k)
			for _, p := range []string{"a.tsx", []string{"a.ts", "a.jsx"}[i%2]} {
				start := cpu()
				project.Imports(p, src)
				if d := cpu() - start; d > patience {
					t.Errorf("%s of %d times %q takes %v", p, k, n, d)
				}
			}
		}
	}
	for _, n := range []string{"a{", "@import ", "@import \"a\";", "url(", "url(a)", "/*", "*/", "@import url(", "import a\n", "from a import\n", "\"\"\"", "'", "@a.get('/a')\n"} {
		for _, p := range []string{"a.css", "a.py"} {
			start := cpu()
			project.Imports(p, strings.Repeat(n, (2<<20)/len(n)))
			if d := cpu() - start; d > patience {
				t.Errorf("%s of %q takes %v", p, n, d)
			}
		}
	}
}

// TestRandom generates deeply nested files of tokens that confuse lexers.
func TestRandom(t *testing.T) {
	skipCosts(t)
	parts := strings.Split("[ ( { a=> a? ! - a= a** a. a?. a( a[ a, if(a) else~ for(;;) a: do~ try{ function~a(){ class~a{static{ new~ typeof~ async()=> `${ ({a: <a> <> <a~b={ <a>{ <T>( <T,>(x= let~x:( :<T>( type~A= namespace~a{ x~as~ (a= / /a/ } ) ] \" ' ` ; , \n //\n /* */ <!--\n </a> /> ++ -- ... @a~ = : | & < > extends~ of~ return~ yield~ await~ import( export~default~ =>{ a<b>( <T~extends~ keyof~ interface~A{ satisfies~ switch(a){ <a<b>~c={", " ")
	seed := seed.Of(t, "", 1)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 400 {
		unit, end := "", ""
		for range 1 + r.IntN(4) {
			part := strings.ReplaceAll(parts[r.IntN(len(parts))], "~", " ")
			unit += part
			for _, c := range part {
				if i := strings.IndexRune("([{", c); i >= 0 {
					end = ")]}"[i:i+1] + end
				}
			}
		}
		n := 10_000 / len(unit)
		src := strings.Repeat(unit, n) + []string{"a", ";", ""}[r.IntN(3)] + strings.Repeat(end, r.IntN(2)*n)
		start := cpu()
		project.Imports([]string{"a.tsx", "a.ts", "a.jsx"}[r.IntN(3)], src)
		if d := cpu() - start; d > patience {
			t.Errorf("%d times %q takes %v (seed %d)", n, unit, d, seed)
		}
	}
}

// TestAgreement compares the imports with those that esbuild finds when it bundles.
func TestAgreement(t *testing.T) {
	sources := maps.Clone(app)
	sources["generic.tsx"] = "import { T } from 't'\nconst a = <X,>(x: X) => <T<string> b={<i>{x as any}</i>}>it's {`a ${require('r')} b`} / text</T>\nconst b = a < 1 ? a / 2 : import('d') /* import 'no' */\nexport * as n from 'n'\n"
	sources["regexp.js"] = "const a = /import 'no'/g, b = x / 2 / import('d'), c = [/[/'\"]/, 'x']\nif (a) /require('no')/.test(b)\nexport { d } from 'e'\nrequire('f')\n"
	sources["class.ts"] = "import D, { type E, F } from 'd'\nimport type { G } from 'g'\n@D() export class A<T extends F = {}> { static { require('s') } #x = 1; get y(): Promise<T> { return import('y') } }\nexport type { H } from 'h'\nexport default abstract class B {}\n"
	for p, src := range sources {
		ext := path.Ext(p)
		loader, ok := map[string]api.Loader{".js": api.LoaderJSX, ".jsx": api.LoaderJSX, ".ts": api.LoaderTS, ".tsx": api.LoaderTSX}[ext]
		if !ok {
			continue
		}
		var want, got []string
		var mu sync.Mutex
		res := api.Build(api.BuildOptions{
			Stdin: &api.StdinOptions{Contents: src, Sourcefile: p, Loader: loader}, Bundle: true, JSX: api.JSXAutomatic, Format: api.FormatESModule, TreeShaking: api.TreeShakingFalse, LogLevel: api.LogLevelSilent,
			TsconfigRaw: `{"compilerOptions":{"verbatimModuleSyntax":true,"experimentalDecorators":true}}`,
			Plugins: []api.Plugin{{Name: "external", Setup: func(b api.PluginBuild) {
				b.OnResolve(api.OnResolveOptions{Filter: "."}, func(a api.OnResolveArgs) (api.OnResolveResult, error) {
					mu.Lock()
					defer mu.Unlock()
					want = append(want, a.Path)
					return api.OnResolveResult{Path: a.Path, External: true}, nil
				})
			}}},
		})
		imports, problems := project.Imports(p, src)
		if len(res.Errors) > 0 != (len(problems) > 0) {
			t.Errorf("%s: esbuild says %v, and %v was found", p, res.Errors, problems)
		}
		if len(res.Errors) > 0 {
			continue
		}
		for _, im := range imports {
			if im.Type != "type" {
				got = append(got, im.Path)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if d := cmp.Diff(slices.Compact(want), slices.Compact(got)); d != "" {
			t.Errorf("%s: %s", p, d)
		}
	}
}

func FuzzImports(f *testing.F) {
	for p, c := range app {
		f.Add(p, c)
	}
	f.Add("a.tsx", "const a = <T,>(x: T) => <A b={`${x}`}>{/* c */}</A>; a / 2 / 3")
	f.Fuzz(func(t *testing.T, p, c string) {
		start := cpu()
		imports, problems := project.Imports(p, c)
		if d := cpu() - start; d > patience {
			t.Fatalf("%d bytes take %v", len(c), d)
		}
		lines := strings.Count(c, "\n") + 1
		for _, im := range imports {
			if im.Line < 1 || im.Line > lines || im.Type == "" || strings.HasPrefix(im.Package, ".") || strings.HasPrefix(im.Package, "-") || strings.ContainsAny(im.Package, " :\\\n") {
				t.Fatalf("%+v of %d lines", im, lines)
			}
		}
		if len(imports) > 2000 || len(problems) > 20 {
			t.Fatalf("%d imports, %d problems", len(imports), len(problems))
		}
		b := project.NewBuilder()
		b.Update(p, c)
		b.Update("package.json", c)
		b.Update("tsconfig.json", c)
		b.Update("vite.config.ts", c)
		b.Manifest()
		project.Missing(map[string]string{p: c, "tsconfig.json": c}, project.Package{})
		project.MissingPython(map[string]string{p: c, "a.py": c})
	})
}

func BenchmarkImports(b *testing.B) {
	src := app["src/App.tsx"]
	big := strings.Repeat(src[strings.Index(src, "function Layout"):], 1)
	for i := range 40 {
		big += strings.ReplaceAll(strings.ReplaceAll(src[strings.Index(src, "function Layout"):], "Layout", fmt.Sprint("Layout", i)), "Lost", fmt.Sprint("Lost", i))
	}
	for name, src := range map[string]string{"1 KB": src, "8 KB": big} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for i := 0; b.Loop(); i++ {
				project.Imports("src/App.tsx", src+fmt.Sprintf("// %d\n", i)) // not a cached one
			}
		})
	}
	b.Run("large", func(b *testing.B) {
		large := strings.Repeat("export const value = [1, 2, { a: 'b' }]\n", 20_000)
		b.SetBytes(int64(len(large)))
		for i := 0; b.Loop(); i++ {
			project.Imports("src/data.ts", large+fmt.Sprintf("// %d\n", i))
		}
	})
	b.Run("again", func(b *testing.B) {
		b.SetBytes(int64(len(src)))
		for b.Loop() {
			project.Imports("src/App.tsx", src)
		}
	})
}

// patience is more CPU time than any test here takes, even with the
// instrumentation of fuzzing. The defects that it detects take minutes.
const patience = 5 * time.Second

// raceDetector reports whether this build has the race detector.
var raceDetector bool

// skipCosts skips tests that only measure.
func skipCosts(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("the race detector takes time, too")
	}
}

// cpu returns the CPU time of the process, which is more reliable than elapsed time
// on a busy machine.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
