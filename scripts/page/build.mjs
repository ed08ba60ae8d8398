// Bundles the libraries of the page of `cdmpp serve`, in the exact versions of package-lock.json:
//
//     npm ci --prefix scripts/page && node scripts/page/build.mjs
//
// writes libraries.js and LICENCES.txt into cdmpp/serve/page/vendor. The bundle is a classic script, so that a report can inline it.

import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const OUT = join(HERE, "../../cdmpp/serve/page/vendor");

// The server's policy forbids <style> elements: page.css has Plot's two rules; CodeMirror uses adopted style sheets.
const CHANGES = [
  [/style-mod[\\/]src[\\/]style-mod\.js$/, "if (!root.head && root.adoptedStyleSheets", "if (root.adoptedStyleSheets"],
  [/plot[\\/]src[\\/]plot\.js$/, /svg\s*\.append\("style"\)\s*\.text\(\s*`[^`]*`\s*\)/, "void 0"],
];

const changed = new Set();
const withoutStyleElements = {
  name: "without-style-elements",
  setup({ onLoad }) {
    for (const [filter, from, to] of CHANGES) {
      onLoad({ filter }, ({ path }) => {
        const before = readFileSync(path, "utf8");
        const contents = before.replace(from, to);
        if (contents !== before) changed.add(filter);
        return { contents };
      });
    }
  },
};

const { metafile } = await build({
  entryPoints: [join(HERE, "libraries.mjs")], outfile: join(OUT, "libraries.js"), bundle: true, minify: true, metafile: true,
  format: "iife", globalName: "libraries", target: "es2022", legalComments: "none", plugins: [withoutStyleElements],
  footer: { js: "globalThis.libraries = libraries;" },
});
if (changed.size !== CHANGES.length) throw new Error("a library adds its <style> elsewhere now: see CHANGES");

const packages = new Set();
const [output] = Object.values(metafile.outputs);
for (const [path, { bytesInOutput }] of Object.entries(output.inputs)) {
  if (!bytesInOutput) continue;
  const found = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path);
  if (found) packages.add(found[1]);
}
const texts = [...packages].sort().map((name) => {
  const folder = join(HERE, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  if (!file) throw new Error(`${name} has no licence file`);
  return `== ${name} ${version} (${license})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
});
writeFileSync(join(OUT, "LICENCES.txt"), texts.join("\n"));
console.log(`${packages.size} packages`);
