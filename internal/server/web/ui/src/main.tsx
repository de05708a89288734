import { render } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import './style.css'
import icon from './icon.svg'
import { problemOf, session, signIn, signOut, whoami } from './api'
import { follow, link } from './live'
import { pages, groups, type PageEntry } from './pages'
import { Shared } from './pages/terminals'
import { Palette, palette } from './palette'
import { route } from './route'
import { Button, Field, Question, State, Toasts, Trouble } from './ui'

const themes = ['system', 'light', 'dark'] as const
type Theme = (typeof themes)[number]
const chosen = (): Theme => (localStorage.getItem('theme') as Theme | null) ?? 'system'
function apply(theme: Theme) {
  if (theme === 'system') {
    localStorage.removeItem('theme')
    delete document.documentElement.dataset.theme
  } else {
    localStorage.setItem('theme', theme)
    document.documentElement.dataset.theme = theme
  }
}
apply(chosen())

function SignIn() {
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const spent = location.pathname === '/dashboard/sign-in'
  useEffect(() => { document.title = 'Sign in · engi' }, [])
  return (
    <div class="gate">
      <main>
        <span class="brand"><img src={icon} alt="" />engi</span>
        {spent && <p class="notice" role="alert">This link was already used, or is older than five minutes. Create a new link, or sign in with a key.</p>}
        <div class="card">
          <h1>Sign in</h1>
          <p class="dim">Run <code>engi open</code> on the server's machine: it opens this page and signs you in. Or use an API key.</p>
          <form onSubmit={async (e) => {
            e.preventDefault()
            setProblem(undefined)
            try {
              await signIn(String(new FormData(e.currentTarget).get('key')))
              if (spent) location.replace('/')
            } catch (err) {
              setProblem(problemOf(err))
            }
          }}>
            <Field label="API key" hint="The first one is in admin.key in the data directory.">
              <input name="key" type="password" autocomplete="current-password" placeholder="engi_…" required />
            </Field>
            <Trouble of={problem} />
            <Button kind="primary" type="submit">Sign in</Button>
          </form>
        </div>
      </main>
    </div>
  )
}

function Side({ open, here }: { open: boolean; here?: PageEntry }) {
  const [theme, setTheme] = useState(chosen())
  const s = session.value
  return (
    <nav id="side" class={open ? 'side open' : 'side'} aria-label="Pages">
      <a class="brand" href="#/"><img src={icon} alt="" />engi</a>
      <Button onClick={() => { palette.value = true }}>Go to <kbd>Ctrl K</kbd></Button>
      {groups.map((group) => (
        <div key={group}>
          {group && <h2>{group}</h2>}
          <ul>
            {pages.filter((p) => p.group === group).map((p) => (
              <li key={p.id}><a href={p.id ? `#/${p.id}` : '#/'} aria-current={here === p ? 'page' : undefined}>{p.name}{p.badge && <p.badge />}</a></li>
            ))}
          </ul>
        </div>
      ))}
      <div class="foot">
        <State of={link.value} />
        <span class="dim">{s?.name || s?.owner || 'key'}{s?.admin ? ' (admin)' : ''}</span>
        <Button class="small" onClick={() => {
          const next = themes[(themes.indexOf(theme) + 1) % themes.length]
          apply(next)
          setTheme(next)
        }}>Theme <span class="dim">{theme}</span></Button>
        <Button class="small" onClick={signOut}>Sign out</Button>
      </div>
    </nav>
  )
}

function App() {
  const [menu, setMenu] = useState(false)
  const main = useRef<HTMLElement>(null)
  const { path } = route.value
  const here = pages.find((p) => p.id === (path[0] ?? ''))
  const at = path.join('/')
  useEffect(() => {
    const stop = new AbortController()
    void follow(stop.signal)
    return () => stop.abort()
  }, [])
  useEffect(() => {
    document.title = [path[1], here?.name, 'engi'].filter(Boolean).join(' · ')
    setMenu(false)
    main.current?.focus()
    scrollTo(0, 0)
  }, [at])
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      const typing = e.target instanceof Element && e.target.closest('.screen') // Ctrl K is the shell's there
      if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === 'k' && !typing) {
        e.preventDefault()
        palette.value = !palette.value
      }
    }
    addEventListener('keydown', key)
    return () => removeEventListener('keydown', key)
  }, [])
  return (
    <div class="frame">
      <header class="bar">
        <a class="brand" href="#/"><img src={icon} alt="" />engi</a>
        <Button aria-expanded={menu} aria-controls="side" onClick={() => setMenu(!menu)}>{menu ? 'Close' : 'Menu'}</Button>
      </header>
      <Side open={menu} here={here} />
      <main ref={main} tabIndex={-1} id="main">
        {here ? <here.page key={at} id={path[1]} /> : <h1>There is no page {at}</h1>}
      </main>
      <Palette />
      <Question />
      <Toasts />
    </div>
  )
}

function Root() {
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const look = () => { whoami().then(() => setProblem(undefined), (err) => setProblem(problemOf(err))) }
  const [shared, secret] = route.value.path
  const guest = shared === 'shared' && secret !== undefined
  useEffect(() => { if (!guest) look() }, [guest])
  if (guest) return <Shared key={secret} secret={secret} />
  if (problem) return <div class="gate"><main><h1>engi</h1><Trouble of={problem} again={look} /></main></div>
  if (!session.value) return null
  return session.value.signed_in ? <App /> : <SignIn />
}

render(<Root />, document.getElementById('app')!)
