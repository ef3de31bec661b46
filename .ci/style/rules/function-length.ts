/**
 * A function fits on a screen. A suite's `describe` and its tests are lists rather than functions, and are not
 * measured.
 */
import ts from 'typescript';
import { isSuite, type StyleRule } from '../rule.ts';
import { findingsOf } from '../walk.ts';

/** Lower: more names for parts that have none of their own. Higher: functions of which one sees a part at a time. */
const functionLines_max = 70;

export const functionLength: StyleRule = {
  name: 'function-length',
  instead: `a function has at most ${functionLines_max} lines, signature and braces included`,
  find: (files) =>
    findingsOf(
      files.filter((file) => !isSuite(file)),
      (node) => {
        if (!ts.isFunctionLike(node) || !('body' in node) || node.body === undefined) return undefined;
        const lines = lineCount(node);
        return lines > functionLines_max ? `${nameOf(node)}: ${lines} lines` : undefined;
      },
    ),
};

function lineCount(node: ts.Node): number {
  const source = node.getSourceFile();
  const lineOf = (position: number) => source.getLineAndCharacterOfPosition(position).line;
  return lineOf(node.getEnd()) - lineOf(node.getStart(source)) + 1;
}

function nameOf(node: ts.SignatureDeclaration): string {
  if (ts.isConstructorDeclaration(node)) return 'constructor';
  const holder = node.name ?? (ts.isVariableDeclaration(node.parent) ? node.parent.name : undefined);
  return holder?.getText() ?? 'a function without a name';
}
