import { cpSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'
import { defineConfig } from 'vite'

const out = '../dist/app'

// The server sends what was compressed here, once and as small as it gets.
const compress = {
  name: 'compress',
  closeBundle() {
    cpSync('runtime/dist', `${out}/ui`, { recursive: true, filter: (path) => !path.endsWith('.d.ts') }) // for pages of others
    for (const dir of [out, `${out}/assets`, `${out}/ui`]) {
      for (const file of readdirSync(dir, { withFileTypes: true })) {
        if (!file.isFile()) continue
        const path = `${dir}/${file.name}`
        const plain = readFileSync(path)
        writeFileSync(`${path}.br`, brotliCompressSync(plain, { params: { [constants.BROTLI_PARAM_SIZE_HINT]: plain.length } }))
        writeFileSync(`${path}.gz`, gzipSync(plain, { level: 9 }))
      }
    }
  },
}

// xterm.js writes styles as text, for which the policy of the page would have to
// allow 'unsafe-inline'. The same by the CSSOM needs no permission.
const styles = {
  name: 'styles',
  transform(code: string, id: string) {
    if (!id.includes('/@xterm/xterm/') || !id.endsWith('.mjs')) return
    let n = 0
    const made = code
      .replace(/(\w+)\.setAttribute\("style",/g, (_, el: string) => (n++, `(${el}.style.cssText=`))
      .replace(/[\w.]+\.createElement\("style"\)/g, () => (n++, 'sheetElement()'))
    if (n !== 4) throw new Error(`xterm.js writes styles at ${n} places, not 4: look at them`)
    return { code: `import { sheetElement } from '/src/sheets.ts';${made}`, map: null }
  },
}

export default defineConfig({
  base: '/dashboard/',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  plugins: [styles, compress],
  build: {
    outDir: out,
    emptyOutDir: true,
    target: 'es2023',
    assetsInlineLimit: 0, // the policy allows no data: in styles
    modulePreload: { polyfill: false },
  },
})
