/**
 * A field that may be missing is set, `{ a, b }` or `if (b !== undefined) answer.b = b`, not spread in by a condition:
 * the compiler does not check such a spread against the type, and who reads looks twice.
 */
import ts from 'typescript';
import type { StyleRule } from '../rule.ts';
import { bare, findingsOf } from '../walk.ts';

export const conditionalSpread: StyleRule = {
  name: 'conditional-spread',
  instead: 'set the field instead of `...(x ? { x } : {})` or `...(x && { x })`',
  find: (files) =>
    findingsOf(files, (node) =>
      ts.isSpreadAssignment(node) && isConditional(bare(node.expression))
        ? node.getText().slice(0, 40).replaceAll(/\s+/g, ' ')
        : undefined,
    ),
};

function isConditional(expression: ts.Expression): boolean {
  if (ts.isConditionalExpression(expression))
    return [expression.whenTrue, expression.whenFalse].some((arm) => isNothing(bare(arm)));
  return (
    ts.isBinaryExpression(expression) &&
    expression.operatorToken.kind === ts.SyntaxKind.AmpersandAmpersandToken
  );
}

function isNothing(arm: ts.Expression): boolean {
  if (ts.isObjectLiteralExpression(arm)) return arm.properties.length === 0;
  return arm.kind === ts.SyntaxKind.NullKeyword || (ts.isIdentifier(arm) && arm.text === 'undefined');
}
