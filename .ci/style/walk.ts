/** Ways through the tree of a file that several rules go. */
import ts from 'typescript';
import { type Finding, findingAt, type ParsedFile } from './rule.ts';

/** Calls `visit` with every node of a file, parents first. */
function eachNode(source: ts.Node, visit: (node: ts.Node) => void): void {
  const step = (node: ts.Node): void => {
    visit(node);
    ts.forEachChild(node, step);
  };
  step(source);
}

/** The findings of a rule that asks of each node alone: `judge` answers with what is wrong, or nothing. */
export function findingsOf(
  files: readonly ParsedFile[],
  judge: (node: ts.Node) => string | undefined,
): Finding[] {
  const findings: Finding[] = [];
  for (const file of files)
    eachNode(file.source, (node) => {
      const what = judge(node);
      if (what !== undefined) findings.push(findingAt(file, node.getStart(file.source), what));
    });
  return findings;
}

export function hasModifier(node: ts.Node, kind: ts.SyntaxKind): boolean {
  return (
    ts.canHaveModifiers(node) && (ts.getModifiers(node)?.some((modifier) => modifier.kind === kind) ?? false)
  );
}

/** Without the parentheses around an expression. */
export function bare(expression: ts.Expression): ts.Expression {
  return ts.isParenthesizedExpression(expression) ? bare(expression.expression) : expression;
}
