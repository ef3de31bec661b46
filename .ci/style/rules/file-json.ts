/**
 * JSON that was read is `unknown` until a schema has looked at it: `schema.parse(JSON.parse(text))`. A cast, a typed
 * variable or a typed answer of a function says of a file what nobody has checked.
 */
import ts from 'typescript';
import { isProduct, type StyleRule } from '../rule.ts';
import { findingsOf } from '../walk.ts';

export const fileJson: StyleRule = {
  name: 'file-json',
  instead: 'give `JSON.parse(…)` to a schema, or take it as `unknown`',
  find: (files) =>
    findingsOf(files.filter(isProduct), (node) =>
      ts.isCallExpression(node) && node.expression.getText() === 'JSON.parse' && isBelieved(node)
        ? node.parent.getText().slice(0, 50).replaceAll(/\s+/g, ' ')
        : undefined,
    ),
};

/** Whether a type other than `unknown` is given to what came of it, as it came. */
function isBelieved(call: ts.CallExpression): boolean {
  const { parent } = call;
  if (ts.isAsExpression(parent)) return isKnown(parent.type);
  if (ts.isVariableDeclaration(parent)) return parent.type === undefined || isKnown(parent.type);
  if (ts.isReturnStatement(parent) || ts.isArrowFunction(parent)) {
    const maker = ts.findAncestor(parent, ts.isFunctionLike);
    return maker?.type === undefined || isKnown(maker.type);
  }
  return ts.isPropertyAccessExpression(parent) || ts.isElementAccessExpression(parent);
}

const isKnown = (type: ts.TypeNode): boolean => type.kind !== ts.SyntaxKind.UnknownKeyword;
