/** Names that this project gives, in contrast to names of others that it only uses. */
import ts from 'typescript';

export interface DeclaredName {
  /** Without the `#` of a private member. */
  text: string;
  /** A function is named by what it answers, a value by what it is. */
  kind: 'value' | 'function' | 'type';
  /** As far as the declaration alone shows it: `: number`, or a number behind the `=`. */
  number: boolean;
}

/**
 * The name that a node declares. A property of an object literal is a use: of a library's option, of a key on the wire.
 */
export function declaredName(node: ts.Node): DeclaredName | undefined {
  if (ts.isFunctionDeclaration(node) || ts.isMethodDeclaration(node) || ts.isMethodSignature(node))
    return named(node.name, 'function', node.type);
  if (ts.isClassDeclaration(node) || ts.isInterfaceDeclaration(node) || ts.isTypeAliasDeclaration(node))
    return named(node.name, 'type', undefined);
  if (ts.isVariableDeclaration(node) || ts.isPropertyDeclaration(node) || ts.isParameter(node)) {
    const holds = node.initializer;
    const kind =
      holds && (ts.isArrowFunction(holds) || ts.isFunctionExpression(holds)) ? 'function' : 'value';
    return named(node.name, kind, node.type, holds);
  }
  if (ts.isGetAccessor(node)) return named(node.name, 'value', node.type);
  if (ts.isPropertySignature(node) && !isOption(node)) return named(node.name, 'value', node.type);
  if (ts.isBindingElement(node) && node.propertyName) return named(node.name, 'value', undefined);
  return undefined;
}

function named(
  name: ts.Node | undefined,
  kind: DeclaredName['kind'],
  type: ts.TypeNode | undefined,
  initializer?: ts.Expression,
): DeclaredName | undefined {
  if (name === undefined || !(ts.isIdentifier(name) || ts.isPrivateIdentifier(name))) return undefined;
  const number = type ? type.kind === ts.SyntaxKind.NumberKeyword : isNumeric(initializer);
  return { text: name.text.replace(/^#/, ''), kind, number };
}

const arithmetic = new Set([
  ts.SyntaxKind.AsteriskToken,
  ts.SyntaxKind.AsteriskAsteriskToken,
  ts.SyntaxKind.SlashToken,
  ts.SyntaxKind.MinusToken,
]);

function isNumeric(initializer: ts.Expression | undefined): boolean {
  if (initializer === undefined) return false;
  if (ts.isBinaryExpression(initializer)) return arithmetic.has(initializer.operatorToken.kind);
  return ts.isNumericLiteral(initializer);
}

/** What commander calls an option that people type: `--max-tokens` is `maxTokens`. */
function isOption({ parent }: ts.PropertySignature): boolean {
  return ts.isInterfaceDeclaration(parent) && /Options$/.test(parent.name.text) && isTyped(parent);
}

const isTyped = (node: ts.Node): boolean => node.getSourceFile().fileName.startsWith('cli/');
