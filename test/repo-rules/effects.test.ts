/** What changes or asks the machine below Node's own calls has one home: host/, and native/ for foreign code. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { beforeAll, describe, expect, it } from 'vitest';

const root = fileURLToPath(new URL('../..', import.meta.url));
const homes = ['host', 'native'];
/** Not the product; and cli/bootstrap.mjs runs before there is anything built that it could call. */
const outside = ['test', 'bench', '.ci', 'web', 'examples', 'cli/bootstrap.mjs'];

interface Found {
  file: string;
  line: number;
  what: 'rename' | '/proc' | 'user';
}

/** Calls of rename(2), questions who the user is, and texts that are paths in /proc. Comments may speak of them. */
function effectsIn(file: string, text: string): Found[] {
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest);
  const found: Found[] = [];
  const add = (node: ts.Node, what: Found['what']): void => {
    found.push({ file, line: source.getLineAndCharacterOfPosition(node.getStart(source)).line + 1, what });
  };
  const visit = (node: ts.Node): void => {
    if (ts.isCallExpression(node)) {
      const { expression } = node;
      const name = ts.isPropertyAccessExpression(expression) ? expression.name : expression;
      if (ts.isIdentifier(name) && /^rename(Sync)?$/.test(name.text)) add(node, 'rename');
      if (ts.isIdentifier(name) && /^(userInfo|homedir)$/.test(name.text)) add(node, 'user');
    }
    if (
      (ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node) || ts.isTemplateHead(node)) &&
      /^\/?proc\//.test(node.text)
    )
      add(node, '/proc');
    ts.forEachChild(node, visit);
  };
  visit(source);
  return found;
}

const isIn = (file: string, places: readonly string[]): boolean =>
  places.some((place) => file === place || file.startsWith(`${place}/`));

describe('effects', () => {
  const files = execFileSync('git', ['ls-files', '-z', '*.ts', '*.tsx', '*.mjs'], {
    cwd: root,
    encoding: 'utf8',
  })
    .split('\0')
    .filter((file) => file !== '' && !isIn(file, outside));
  let found: Found[];
  beforeAll(() => {
    found = files.flatMap((file) => effectsIn(file, readFileSync(`${root}/${file}`, 'utf8')));
  });

  it('are found where they are', () => {
    const probe = `rename(a, b); fs.renameSync(a, b); read('/proc/1/stat'); join(root, "proc/stat"); os.userInfo(); homedir(); // '/proc/1'`;
    const what = effectsIn('probe.ts', probe).map((each) => each.what);
    expect(what).toEqual(['rename', 'rename', '/proc', '/proc', 'user', 'user']);
    expect(files.length).toBeGreaterThan(300);
    for (const what of ['rename', '/proc'] as const)
      expect(found.filter((each) => each.what === what && isIn(each.file, ['host'])).length).toBeGreaterThan(
        2,
      );
  });

  it('happen in host/ and native/ alone', () => {
    const elsewhere = found.filter(({ file }) => !isIn(file, homes));
    expect(elsewhere.map(({ file, line, what }) => `${file}:${line} ${what}`)).toEqual([]);
  });
});
