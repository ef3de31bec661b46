/** The TypeScript files that git tracks or is about to, parsed without their types (which takes two seconds). */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { packageRoot } from '../../host/package-root.ts';
import type { ParsedFile } from './rule.ts';

/** Those that nobody has committed yet count, unless git ignores them. */
const listing = ['ls-files', '-z', '--cached', '--others', '--exclude-standard', '*.ts', '*.tsx'];

export function sourceFiles(): ParsedFile[] {
  const listed = execFileSync('git', listing, { cwd: packageRoot, encoding: 'utf8' });
  return [...new Set(listed.split('\0'))]
    .filter((path) => path !== '' && existsSync(join(packageRoot, path)))
    .sort()
    .map((path) => parsed(path, readFileSync(join(packageRoot, path), 'utf8')));
}

export function parsed(path: string, text: string): ParsedFile {
  return { path, source: ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true) };
}
